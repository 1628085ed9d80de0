//! Client connections: accept, read and parse, write what the broker queued.

mod buffer;
pub(crate) mod listener;
mod session;
#[cfg(test)]
pub(crate) mod tests;
mod writer;
