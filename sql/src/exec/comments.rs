//! Execution of COMMENT ON.

use pangea_core::txn::Context;

use super::Executed;
use crate::catalog::comment;
use crate::error::Failure;
use crate::expr::Env;
use crate::plan::{Comment, Utility};

impl Utility for Comment {
    fn command(&self) -> &'static str {
        "COMMENT"
    }

    fn run(&self, _: &Env, cx: &mut dyn Context) -> Result<Executed, Failure> {
        comment::put(self.subject, self.text.as_deref(), cx)?;
        Ok(Executed::default())
    }
}
