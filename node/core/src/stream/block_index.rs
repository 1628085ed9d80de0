//! What a block file that takes no more frames holds, without the messages' bodies: a start reads it in the block's
//! stead. Derived from the block, so losing it loses time and nothing else.

use bytes::Bytes;
use hashbrown::HashMap;

use super::state::StreamState;
use super::{Outline, headers};
use crate::codec::{DecodeError, Reader, Writer};
use crate::frame::{Frame, FrameKind, RecordFlags};
use crate::ids::{StreamId, StreamSeq, Timestamp};

const MAGIC: &[u8; 4] = b"HWBI";
const VERSION: u8 = 1;

/// Where a stream's state is rebuilt from at a start: what comes is in the order of the log.
pub trait Rebuild {
    /// A frame that was read.
    fn frame(&mut self, frame: &Frame);
    /// A whole block by its index. False if that does not tell enough and its frames have to be read after all, which
    /// is not said of a block that cannot be `readable`.
    fn block(&mut self, index: &BlockIndex, readable: bool) -> bool;
    /// Some of the frames of the only copy of a stream cannot be read: what is live and does not come is gone.
    fn hole(&mut self);
}

/// A frame with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameEntry {
    /// Bytes before it in the file.
    pub offset: u32,
    /// Its bytes.
    pub len: u32,
    /// Its first message.
    pub base_seq: StreamSeq,
    /// How many messages it has, at least one.
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordEntry {
    subject: u32,
    headers_len: u32,
    payload_len: u32,
    crc: u32,
}

/// The index of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockIndex {
    stream: StreamId,
    block: u64,
    /// Bytes of the file that it is about: all that count.
    valid_bytes: u64,
    frames: Vec<FrameEntry>,
    subjects: Vec<Box<[u8]>>,
    /// Of all frames, in their order.
    records: Vec<RecordEntry>,
    /// Messages with a TTL: number of the record, and when it is due.
    deadlines: Vec<(u32, Timestamp)>,
    /// Time of the newest message with an id.
    newest_id: Option<Timestamp>,
}

/// Gathers a block's index while its frames are read.
#[derive(Debug)]
pub struct BlockIndexBuilder {
    index: BlockIndex,
    numbers: HashMap<Box<[u8]>, u32>,
    /// The subject of the last record: publishers send runs of one subject.
    latest: u32,
    /// Sequences that go back cannot be said in an index.
    ordered: bool,
}

impl BlockIndexBuilder {
    /// For a block by its number, none of whose frames were read yet.
    pub fn new(stream: StreamId, block: u64) -> Self {
        let index = BlockIndex {
            stream,
            block,
            valid_bytes: 0,
            frames: Vec::new(),
            subjects: Vec::new(),
            records: Vec::new(),
            deadlines: Vec::new(),
            newest_id: None,
        };
        Self { index, numbers: HashMap::new(), latest: 0, ordered: true }
    }

    /// The next frame, which lies at `offset`.
    pub fn add(&mut self, offset: u32, frame: &Frame) {
        let header = frame.header();
        if header.kind != FrameKind::Messages || header.count == 0 {
            return;
        }
        let entry = FrameEntry { offset, len: header.len, base_seq: header.base_seq, count: header.count };
        self.ordered &= self.index.frames.last().is_none_or(|last| entry.base_seq >= last.end());
        self.index.frames.push(entry);
        for record in frame.records() {
            let number = self.index.records.len() as u32;
            if let Some(due) = headers::deadline(&record) {
                self.index.deadlines.push((number, due));
            }
            if record.flags.has(RecordFlags::HAS_MSG_ID) {
                self.index.newest_id = self.index.newest_id.max(Some(record.ts));
            }
            let subject = self.subject(record.subject());
            self.index.records.push(RecordEntry {
                subject,
                headers_len: record.headers().len() as u32,
                payload_len: record.payload().len() as u32,
                crc: record.crc,
            });
        }
    }

    fn subject(&mut self, subject: &[u8]) -> u32 {
        if self.index.subjects.get(self.latest as usize).is_some_and(|latest| **latest == *subject) {
            return self.latest;
        }
        self.latest = match self.numbers.get(subject) {
            Some(number) => *number,
            None => {
                let number = self.index.subjects.len() as u32;
                self.index.subjects.push(subject.into());
                self.numbers.insert(subject.into(), number);
                number
            }
        };
        self.latest
    }

    /// The index of a block of `valid_bytes` bytes; `None` for one whose sequences go back, which is always read whole.
    pub fn finish(mut self, valid_bytes: u64) -> Option<BlockIndex> {
        self.index.valid_bytes = valid_bytes;
        self.ordered.then_some(self.index)
    }
}

impl FrameEntry {
    fn end(&self) -> StreamSeq {
        StreamSeq::new(self.base_seq.get().saturating_add(u64::from(self.count)))
    }
}

impl BlockIndex {
    /// Whether it is about this file at this length.
    pub fn is_of(&self, stream: StreamId, block: u64, valid_bytes: u64) -> bool {
        (self.stream, self.block, self.valid_bytes) == (stream, block, valid_bytes)
    }

    /// The frames with messages, ascending.
    pub fn frames(&self) -> &[FrameEntry] {
        &self.frames
    }

    /// How many messages were ever put into the block.
    pub fn message_count(&self) -> usize {
        self.records.len()
    }

    /// How many subjects these have.
    pub fn subject_count(&self) -> usize {
        self.subjects.len()
    }

    /// What it knows of a message.
    pub fn outline(&self, seq: StreamSeq) -> Option<Outline> {
        let nth = self.frames.partition_point(|frame| frame.end() <= seq);
        let within = seq.get().checked_sub(self.frames.get(nth)?.base_seq.get())?;
        let before: u64 = self.frames.iter().take(nth).map(|frame| u64::from(frame.count)).sum();
        let number = before + within;
        let record = self.records.get(usize::try_from(number).ok()?)?;
        let due = self.deadlines.binary_search_by_key(&number, |(of, _)| u64::from(*of)).ok();
        Some(Outline {
            subject: self.subjects[record.subject as usize].clone(),
            headers_len: record.headers_len as usize,
            payload_len: record.payload_len as usize,
            crc: record.crc,
            deadline: due.map(|nth| self.deadlines[nth].1),
        })
    }

    /// Bytes of the block's file that it is about.
    pub fn valid_bytes(&self) -> u64 {
        self.valid_bytes
    }

    /// The stream and the block's number.
    pub fn block(&self) -> (StreamId, u64) {
        (self.stream, self.block)
    }

    /// What tells a block from one with other frames, whose places and checksums are all in the index: its length and its
    /// own checksum. `tail` is the end of what was [encoded](Self::encode), `len` its length. `None` if that is too short.
    pub fn identity(tail: &[u8], len: u64) -> Option<u64> {
        let crc = tail.last_chunk::<4>()?;
        Some(u64::from(u32::from_le_bytes(*crc)) << 32 | (len & u64::from(u32::MAX)))
    }

    /// As stored: `docs/formats/block-index.md`.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.u8(VERSION);
        out.u64(self.stream.get());
        out.u64(self.block);
        out.u64(self.valid_bytes);
        out.varint(self.newest_id.map_or(0, |ts| ts.get().saturating_add(1)));
        out.varint(self.frames.len() as u64);
        let (mut end, mut next) = (0, StreamSeq::default());
        for frame in &self.frames {
            out.varint(u64::from(frame.offset - end));
            out.varint(u64::from(frame.len));
            out.varint(frame.base_seq.get() - next.get());
            out.varint(u64::from(frame.count));
            (end, next) = (frame.offset + frame.len, frame.end());
        }
        out.varint(self.subjects.len() as u64);
        for subject in &self.subjects {
            out.bytes(subject);
        }
        for record in &self.records {
            out.varint(u64::from(record.subject));
            out.varint(u64::from(record.headers_len));
            out.varint(u64::from(record.payload_len));
            out.raw(&record.crc.to_le_bytes());
        }
        out.varint(self.deadlines.len() as u64);
        for (number, due) in &self.deadlines {
            out.varint(u64::from(*number));
            out.varint(due.get());
        }
        let crc = crc32c::crc32c(out.written());
        out.raw(&crc.to_le_bytes());
        out.finish()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If it is torn, damaged, or of a version that is not known: then the block itself has to be read.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const CRC: DecodeError = DecodeError::Unknown("block index: crc");
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(CRC)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(CRC);
        }
        let mut read = Reader::new(body);
        if read.raw(4)? != MAGIC || read.u8()? != VERSION {
            return Err(DecodeError::Unknown("block index: magic or version"));
        }
        let (stream, block, valid_bytes) = (StreamId::new(read.u64()?), read.u64()?, read.u64()?);
        let newest_id = read.varint()?.checked_sub(1).map(Timestamp::new);
        let mut records_len = 0_usize;
        let mut frames = Vec::with_capacity(read.count()?);
        let (mut end, mut next) = (0_u64, 0_u64);
        const FRAME: DecodeError = DecodeError::Unknown("block index: frame");
        for _ in 0..frames.capacity() {
            let offset = end.checked_add(read.varint()?).ok_or(FRAME)?;
            let len = read.varint()?;
            let base_seq = next.checked_add(read.varint()?).ok_or(FRAME)?;
            let count = read.varint()?;
            end = offset.checked_add(len).filter(|end| *end <= u64::from(u32::MAX)).ok_or(FRAME)?;
            next = base_seq.checked_add(count).filter(|_| (1..=u64::from(u32::MAX)).contains(&count)).ok_or(FRAME)?;
            records_len = records_len.saturating_add(count as usize);
            frames.push(FrameEntry {
                offset: offset as u32,
                len: len as u32,
                base_seq: StreamSeq::new(base_seq),
                count: count as u32,
            });
        }
        let mut subjects: Vec<Box<[u8]>> = Vec::with_capacity(read.count()?);
        for _ in 0..subjects.capacity() {
            subjects.push(read.bytes()?.into());
        }
        const RECORD: DecodeError = DecodeError::Unknown("block index: record");
        let small = |value: u64| u32::try_from(value).map_err(|_| RECORD);
        if records_len > body.len() {
            return Err(RECORD);
        }
        let mut records = Vec::with_capacity(records_len);
        for _ in 0..records_len {
            let subject = small(read.varint()?)?;
            if subject as usize >= subjects.len() {
                return Err(RECORD);
            }
            let (headers_len, payload_len) = (small(read.varint()?)?, small(read.varint()?)?);
            let crc = read.raw(4)?;
            let crc = u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]);
            records.push(RecordEntry { subject, headers_len, payload_len, crc });
        }
        let mut deadlines = Vec::new();
        for _ in 0..read.count()? {
            let number = small(read.varint()?)?;
            if number as usize >= records.len() {
                return Err(RECORD);
            }
            deadlines.push((number, Timestamp::new(read.varint()?)));
        }
        read.end()?;
        Ok(Self { stream, block, valid_bytes, frames, subjects, records, deadlines, newest_id })
    }

    /// The block's index from its bytes: `bytes` begins with the frame at `offset` and ends with the last that counts.
    /// `None` if they are not whole frames of the stream, in order.
    pub fn of_frames(stream: StreamId, block: u64, offset: u32, bytes: &Bytes) -> Option<Self> {
        let mut builder = BlockIndexBuilder::new(stream, block);
        let mut at = 0;
        while at < bytes.len() {
            let len = bytes.get(at..at + 4).map(|len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize)?;
            let end = at.checked_add(len).filter(|end| len > 0 && *end <= bytes.len())?;
            let frame = Frame::parse(bytes.slice(at..end)).ok().filter(|frame| frame.header().stream == stream)?;
            builder.add(offset.checked_add(u32::try_from(at).ok()?)?, &frame);
            at = end;
        }
        builder.finish(u64::from(offset) + at as u64)
    }
}

impl Rebuild for StreamState {
    fn frame(&mut self, frame: &Frame) {
        self.rebuild(frame);
    }

    fn block(&mut self, index: &BlockIndex, readable: bool) -> bool {
        let Some(counts) = self.rebuild.as_ref() else {
            return true;
        };
        let (Some(first), Some(last)) = (index.frames.first(), index.frames.last()) else {
            return true;
        };
        // What a duplicate has to be told from is in the messages' headers.
        let ids_matter =
            index.newest_id.is_some_and(|newest| self.log_time.since_ns(newest) < self.settings.duplicate_window_ns);
        if index.stream != self.id
            || first.base_seq < counts.next
            || last.end() > self.last_seq.next()
            || (ids_matter && readable)
        {
            return false;
        }
        let Some(mut counts) = self.rebuild.take() else {
            return true;
        };
        counts.pass_over(first.base_seq);
        let mut slots = vec![None; index.subjects.len()];
        let seqs = index
            .frames
            .iter()
            .flat_map(|frame| (0..u64::from(frame.count)).map(|nth| StreamSeq::new(frame.base_seq.get() + nth)));
        let mut deadlines = index.deadlines.iter().peekable();
        for (number, (record, seq)) in index.records.iter().zip(seqs).enumerate() {
            let due = deadlines.next_if(|(of, _)| *of as usize == number);
            if !self.is_live(seq) {
                continue;
            }
            let subject = &index.subjects[record.subject as usize];
            counts.messages += 1;
            counts.bytes += super::stored_len(
                self.settings.storage,
                subject.len(),
                record.headers_len as usize,
                record.payload_len as usize,
            );
            counts.digest.add(seq, record.crc);
            if let Some((_, due)) = due {
                self.ttls.insert((*due, seq));
            }
            match slots[record.subject as usize] {
                Some(slot) => self.subjects.push_at(slot, seq),
                None => slots[record.subject as usize] = Some(self.subjects.push_back(subject, seq)),
            }
        }
        counts.next = last.end();
        self.rebuild = Some(counts);
        true
    }

    fn hole(&mut self) {
        if let Some(counts) = &mut self.rebuild {
            counts.has_holes = true;
        }
    }
}

#[cfg(test)]
mod tests;
