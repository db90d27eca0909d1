//! The maths, pure: no clock, lock, task, random source or logging. Time comes in as an argument.

pub(crate) mod drain_rate;
pub(crate) mod token_bucket;
