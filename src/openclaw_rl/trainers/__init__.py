"""Trainers: samples in, one optimizer step, a folder with the next policy out. Heavy libraries stay inside."""
