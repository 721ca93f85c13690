//! What a replica writes down.
