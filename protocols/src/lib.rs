//! Five ways to agree.

pub mod minerva {
    //! Minerva: every replica takes writes, cuts order them, re-execution resolves conflicts.

    pub mod independent_set;
}
