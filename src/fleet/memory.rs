//! A stand-in for the server, in this process.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

use super::store::{Run, Script, Store};
use crate::{
    BoxError, Clock,
    law::{
        block::{Blocks, Renewal},
        lease::{self, Ask},
    },
    sync::lock,
};

/// A [`Store`] in this process, which computes what the scripts do: for tests, and to try things out without a server.
///
/// Clones are the same store. It goes by a [`Clock`], so under `tokio::time::pause` its time is the test's. What was
/// stored is forgotten when there is nothing left to know of it, as on a server.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    clock: Clock,
}

#[derive(Default)]
struct State {
    tats: HashMap<Vec<u8>, u64>,
    /// What is full again is forgotten when there are so many.
    most: usize,
    blocks: HashMap<Vec<u8>, Blocks>,
}

impl State {
    fn insert(&mut self, key: &[u8], tat: u64, now: u64) {
        if self.tats.len() > self.most {
            self.tats.retain(|_, tat| *tat > now);
            self.most = 2 * self.tats.len() + 1000;
        }
        self.tats.insert(key.into(), tat);
    }
}

impl Memory {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything, as a server that has lost its data.
    pub fn flush(&self) {
        *lock(&self.state) = State::default();
    }

    fn run_now(&self, script: Script, key: &[u8], args: &[i64]) -> Option<[i64; 3]> {
        // Long after 1970, as everywhere.
        let now = self.clock.nanos() / 1000 + 1_700_000_000_000_000;
        let mut state = lock(&self.state);
        match script {
            Script::Lease => {
                let ask = Ask::from_args(args)?;
                let tat = state.tats.get(key).copied();
                let (after, answer) = lease::grant(tat, now, &ask);
                if let Some(after) = after {
                    state.insert(key, after, now);
                }
                Some(answer.numbers())
            }
            Script::Block => {
                let renewal = Renewal::from_args(args)?;
                let blocks = state.blocks.entry(key.into()).or_default();
                Some(blocks.renew(now, &renewal).numbers())
            }
        }
    }
}

impl Store for Memory {
    fn run<'a>(&'a self, script: Script, key: &'a [u8], args: &'a [i64]) -> Run<'a> {
        Box::pin(async move {
            let numbers = self.run_now(script, key, args);
            let numbers = numbers.ok_or_else(|| BoxError::from("arguments of another script"))?;
            Ok(numbers.into())
        })
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}
