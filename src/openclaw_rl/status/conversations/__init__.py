"""Conversations for people: titles, messages, turns, and the words of the person in them."""
