-- Add the digests of large files, such as base weights, which are computed once for each file.
CREATE TABLE file_digests (
    path TEXT NOT NULL PRIMARY KEY,
    size INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    sha256 BLOB NOT NULL
);
