//! Every workload on the model: loads, runs, checks.

use super::*;
