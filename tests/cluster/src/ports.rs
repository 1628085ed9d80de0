//! Free TCP ports on loopback.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Below the range systems take outgoing ports from, so that a port given here isn't taken by a
/// connection while its node is down.
const FIRST: u16 = 21_000;
const SPAN: u16 = 9_000;

/// A port nothing listens on, and which this process hasn't given out before.
///
/// # Errors
/// If no port of the range is free.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    // Another test process starts elsewhere in the range.
    let start = (std::process::id().wrapping_mul(37) % u32::from(SPAN)) as u16;
    for offset in 0..SPAN {
        let port = FIRST + (start + offset) % SPAN;
        if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            given.insert(port);
            return Ok(port);
        }
    }
    anyhow::bail!("no free port from {FIRST} to {}", FIRST + SPAN - 1)
}
