//! Runs foreign code several times over, whatever it does: wakers, and those who listen to the log.
//!
//! Where several waiters are let in at once, each of them has its permit before it is woken, and the first waker
//! may panic. Nobody would come back to wake the others. So all are woken, and the panic goes on afterwards.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

/// Keeps the first panic until everything has run.
#[derive(Default)]
#[must_use = "what has panicked goes on panicking in `finish`"]
pub(crate) struct Foreign {
    panic: Option<Box<dyn Any + Send>>,
}

impl Foreign {
    /// Nothing of ours may be left half done if it panics.
    pub(crate) fn run(&mut self, foreign: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(foreign)) {
            self.panic.get_or_insert(panic);
        }
    }

    pub(crate) fn has_panicked(&self) -> bool {
        self.panic.is_some()
    }

    /// Goes on with the first panic, if there was one. But not while this thread unwinds already: permits are given
    /// back in destructors, and a panic out of one of those would end the process.
    pub(crate) fn finish(self) {
        if let (Some(panic), false) = (self.panic, thread::panicking()) {
            resume_unwind(panic);
        }
    }
}

#[cfg(all(test, not(backpressure_loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_runs_and_the_first_panic_goes_on() {
        let mut ran = Vec::new();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let mut foreign = Foreign::default();
            for n in 0..4 {
                foreign.run(|| {
                    ran.push(n);
                    assert!(n == 0 || n == 3, "{n}");
                });
            }
            foreign.finish();
        }));
        assert_eq!(ran, [0, 1, 2, 3]);
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"1".to_owned()));
    }

    #[test]
    fn what_panics_in_a_destructor_while_a_thread_unwinds_does_not_end_the_process() {
        struct Drops;
        impl Drop for Drops {
            fn drop(&mut self) {
                let mut foreign = Foreign::default();
                foreign.run(|| panic!("the second"));
                foreign.finish();
            }
        }
        let panic = catch_unwind(|| {
            let _drops = Drops;
            panic!("the first");
        });
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"the first"));
    }
}
