"""Rules of the judge: what people say about replies, and what they ask of the next one."""
