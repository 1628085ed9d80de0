//! Frames kept in memory after they were written or read, oldest out first.

use std::collections::VecDeque;

use hashbrown::HashMap;
use headwater_core::frame::Frame;

use crate::checkpoint::BlockNumber;

/// Where a frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FramePlace {
    pub(crate) block: BlockNumber,
    pub(crate) offset: u32,
}

/// The cache.
pub(crate) struct FrameCache {
    frames: HashMap<FramePlace, Frame>,
    order: VecDeque<FramePlace>,
    bytes: usize,
    bytes_max: usize,
}

impl FrameCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { frames: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub(crate) fn get(&self, place: FramePlace) -> Option<Frame> {
        self.frames.get(&place).cloned()
    }

    pub(crate) fn insert(&mut self, place: FramePlace, frame: Frame) {
        let len = frame.bytes().len();
        if len > self.bytes_max || self.frames.contains_key(&place) {
            return;
        }
        self.frames.insert(place, frame);
        self.order.push_back(place);
        self.bytes += len;
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some(frame) = self.frames.remove(&oldest) {
                self.bytes -= frame.bytes().len();
            }
        }
    }

    /// Forgets the frames of blocks that are gone.
    pub(crate) fn forget(&mut self, gone: impl Fn(BlockNumber) -> bool) {
        self.order.retain(|place| !gone(place.block));
        self.frames.retain(|place, _| !gone(place.block));
        self.bytes = self.frames.values().map(|frame| frame.bytes().len()).sum();
    }
}
