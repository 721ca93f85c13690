//! The work that Pangea is measured by.
