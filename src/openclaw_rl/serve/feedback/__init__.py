"""`/v1/feedback`: explicit feedback on replies, from programs that know a reply by its id or by what they show."""
