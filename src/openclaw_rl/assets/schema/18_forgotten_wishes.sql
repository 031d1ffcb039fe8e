-- Add the wishes that a person has forgotten: their turns do not give them again.
CREATE TABLE forgotten_wishes (
    turn TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    wish TEXT NOT NULL,
    PRIMARY KEY (turn, wish)
);
