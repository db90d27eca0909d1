//! Several fair queues as one.
