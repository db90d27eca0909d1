//! What a channel says when it does not take or give a message.

use std::{error::Error, fmt};

use crate::{BoxError, Overloaded};

/// The receiver is closed or gone. Here is the message back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Closed<T>(pub T);

impl<T> fmt::Debug for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closed(..)")
    }
}

impl<T> fmt::Display for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the channel is closed")
    }
}

impl<T> Error for Closed<T> {}

/// The message was not sent. Here it is back.
#[derive(Clone, PartialEq, Eq)]
pub enum Unsent<T> {
    /// There was no room in time.
    Overloaded {
        /// What was to be sent.
        message: T,
        /// Says when to try again.
        overloaded: Overloaded,
    },
    /// The receiver is closed or gone; trying again does not help.
    Closed {
        /// What was to be sent.
        message: T,
    },
}

impl<T> Unsent<T> {
    /// What was to be sent.
    pub fn into_message(self) -> T {
        match self {
            Self::Overloaded { message, .. } | Self::Closed { message } => message,
        }
    }

    /// When to try again, if there was no room.
    pub fn overloaded(&self) -> Option<&Overloaded> {
        match self {
            Self::Overloaded { overloaded, .. } => Some(overloaded),
            Self::Closed { .. } => None,
        }
    }

    /// The error alone, for a service that answers with it. The message is dropped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_backpressure::{BoxError, channel::{Sender, Unsent}};
    /// async fn create(commands: &Sender<String>) -> Result<(), BoxError> {
    ///     let sent = commands.send_within("create".into(), Duration::from_secs(1)).await;
    ///     sent.map_err(Unsent::into_error) // an OverloadResponseLayer makes a 503 of it
    /// }
    /// ```
    pub fn into_error(self) -> BoxError {
        match self {
            Self::Overloaded { overloaded, .. } => Box::new(overloaded),
            Self::Closed { .. } => Box::new(Closed(())),
        }
    }
}

impl<T> From<Closed<T>> for Unsent<T> {
    fn from(Closed(message): Closed<T>) -> Self {
        Self::Closed { message }
    }
}

impl<T> fmt::Debug for Unsent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.overloaded() {
            Some(overloaded) => f.debug_tuple("Overloaded").field(overloaded).finish(),
            None => f.write_str("Closed"),
        }
    }
}

impl<T> fmt::Display for Unsent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.overloaded() {
            Some(_) => f.write_str("the channel is full"),
            None => Closed(()).fmt(f),
        }
    }
}

impl<T> Error for Unsent<T> {
    /// The [`Overloaded`], so that [`Overloaded::find`] finds it.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.overloaded().map(|overloaded| overloaded as _)
    }
}

/// There is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is none yet.
    Empty,
    /// There will not be any more.
    Closed,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the channel is empty"),
            Self::Closed => Closed(()).fmt(f),
        }
    }
}

impl Error for TryRecvError {}
