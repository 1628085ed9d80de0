//! The fence: at most one holder at a time changes the cluster's plan, and a slow former one is refused.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::Timestamp;

/// A fencing token. Rises with every issue, for ever.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FenceNumber(u64);

impl FenceNumber {
    /// Wraps a number, as it came with a request.
    pub fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number; 0 was never issued.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The last issued fence.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Fence {
    /// Its number; 0 before the first.
    pub number: FenceNumber,
    /// Who got it; `None` before the first and after a release.
    pub holder: Option<String>,
    /// Until when it holds, by log time.
    pub expires: Timestamp,
}

/// Why a fenced command is refused.
#[derive(Clone, Debug, Eq, PartialEq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FenceRefusal {
    /// Another holder's fence is alive.
    #[error("fence {number} is held by {holder} until {expires}", number = number.get())]
    Held {
        /// The live number.
        number: FenceNumber,
        /// Who has it.
        holder: String,
        /// Until when.
        expires: Timestamp,
    },
    /// A newer number was issued.
    #[error("fence {given} is older than {current}", given = given.get(), current = current.get())]
    Stale {
        /// What came.
        given: FenceNumber,
        /// The newest.
        current: FenceNumber,
    },
    /// The number is the newest one, but its time is over or it was given back.
    #[error("fence {given} has expired", given = given.get())]
    Expired {
        /// What came.
        given: FenceNumber,
    },
    /// The number was never issued.
    #[error("fence {given} was never issued", given = given.get())]
    Unknown {
        /// What came.
        given: FenceNumber,
    },
}

impl Fence {
    /// Whether somebody holds it.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.holder.is_some() && now < self.expires
    }

    /// Issues the next number. The live holder itself gets a new number too: its former process is fenced off.
    pub(super) fn acquire(&mut self, holder: &str, ttl_ns: u64, now: Timestamp) -> Result<FenceNumber, FenceRefusal> {
        if let Some(other) = self.holder.as_deref().filter(|other| *other != holder && self.is_live(now)) {
            return Err(FenceRefusal::Held { number: self.number, holder: other.to_owned(), expires: self.expires });
        }
        self.number = FenceNumber(self.number.0 + 1);
        self.holder = Some(holder.to_owned());
        self.expires = now.plus_ns(ttl_ns);
        Ok(self.number)
    }

    /// Prolongs the newest number, also shortly after it expired, as long as nobody else got one.
    pub(super) fn renew(&mut self, number: FenceNumber, ttl_ns: u64, now: Timestamp) -> Result<(), FenceRefusal> {
        self.check_number(number)?;
        if self.holder.is_none() {
            return Err(FenceRefusal::Expired { given: number });
        }
        self.expires = now.plus_ns(ttl_ns);
        Ok(())
    }

    /// Gives the newest number back.
    pub(super) fn release(&mut self, number: FenceNumber) -> Result<(), FenceRefusal> {
        self.check_number(number)?;
        self.holder = None;
        Ok(())
    }

    /// Whether a command that carries `number` may act.
    pub fn check(&self, number: FenceNumber, now: Timestamp) -> Result<(), FenceRefusal> {
        self.check_number(number)?;
        if !self.is_live(now) {
            return Err(FenceRefusal::Expired { given: number });
        }
        Ok(())
    }

    fn check_number(&self, number: FenceNumber) -> Result<(), FenceRefusal> {
        if number < self.number {
            return Err(FenceRefusal::Stale { given: number, current: self.number });
        }
        if number > self.number || number.0 == 0 {
            return Err(FenceRefusal::Unknown { given: number });
        }
        Ok(())
    }
}
