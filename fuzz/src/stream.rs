//! A stream's log, applied, and the image of its state.

use bytes::Bytes;
use headwater_core::frame::{Frame, FrameBuilder, FrameKind, OwnedRecord, RecordFlags};
use headwater_core::ids::{LogIndex, LogPosition, Ordinal, StreamSeq, Term, Timestamp};
use headwater_core::stream::{Damaged, Records, StreamState, decode_command};

use crate::frame::built;
use crate::input::{Input, put_number, put_part};
use crate::sample;

const TERM: Term = Term::new(1);

/// Frames kept as the store would.
#[derive(Default)]
pub(crate) struct Kept(Vec<Frame>);

impl Records for Kept {
    fn record(&self, seq: StreamSeq) -> Result<Option<OwnedRecord>, Damaged> {
        Ok(self.0.iter().filter(|frame| frame.header().kind == FrameKind::Messages).find_map(|frame| {
            let delta = seq.get().checked_sub(frame.header().base_seq.get())?;
            frame.owned_record(u32::try_from(delta).ok()?)
        }))
    }
}

/// Steps: a kind, then the bodies of messages or the body of a command. `0` is a frame with any header.
pub(crate) fn log_seeds() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut seeds = Vec::new();
    for frame in sample::frames() {
        let frame = Frame::parse(frame.clone()).expect("a sealed frame");
        let mut step = Vec::new();
        let kind = frame.header().kind;
        step.push(kind as u8);
        if kind == FrameKind::Messages {
            step.push(frame.header().count as u8);
            for record in frame.records() {
                step.push(record.flags.bits());
                put_part(&mut step, record.subject());
                put_part(&mut step, record.headers());
                put_part(&mut step, record.payload());
            }
        } else {
            put_part(&mut step, frame.body().unwrap_or_default());
        }
        all.extend_from_slice(&step);
        seeds.push([&all[..], &step].concat());
    }
    let mut any = vec![0, FrameKind::Messages as u8];
    for number in [1, 2, 3, 50] {
        put_number(&mut any, number);
    }
    any.push(0);
    seeds.push(any);
    seeds
}

/// The next step, as a leader would frame it: void by the header alone would be all there is otherwise.
fn step(input: &mut Input<'_>, state: &StreamState) -> Bytes {
    let kind = input.u8();
    let Some(kind) = FrameKind::from_u8(kind % 10) else { return built(input, sample::STREAM) };
    let (_, ordinal) = state.last_effective();
    let (base_seq, base_ts) = (state.last_seq().next(), state.last_ts());
    let mut frame = FrameBuilder::new(kind, sample::STREAM, TERM, ordinal.next(), base_seq, base_ts);
    if kind == FrameKind::Messages {
        for _ in 0..input.u8() % 8 {
            let (flags, subject, headers, payload) = (input.u8(), input.part(), input.part(), input.part());
            let _ = frame.push_message(base_ts.plus_ns(7), subject, headers, payload, RecordFlags::from_bits(flags));
        }
    } else {
        let body = input.part();
        if let Ok(command) = decode_command(kind, body) {
            assert_eq!(command.kind(), kind);
            assert_eq!(decode_command(kind, &command.encode()), Ok(command));
        }
        let _ = frame.push_body(body);
    }
    frame.finish()
}

fn begin(state: &StreamState) -> Bytes {
    let (after_term, after_ordinal) = state.last_effective();
    let mut frame = FrameBuilder::new(
        FrameKind::Begin,
        sample::STREAM,
        TERM,
        Ordinal::new(1),
        state.last_seq().next(),
        Timestamp::ZERO,
    );
    let body = [after_term.get().to_le_bytes(), after_ordinal.get().to_le_bytes()].concat();
    let _ = frame.push_body(&body);
    frame.finish()
}

pub(crate) fn log(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut state, mut twin) = (sample::fresh_state(), sample::fresh_state());
    let mut kept = Kept::default();
    let mut index = LogIndex::new(1);
    let mut frame = begin(&state);
    let window = state.settings().duplicate_window_ns;
    let mut same_window = true;
    loop {
        // Numbers that no counting leads to are refused.
        let Ok(parsed) = Frame::parse(frame) else { return };
        let at = LogPosition { index, term: TERM };
        let applied = state.apply(at, &parsed, &kept).expect("every message is there");
        assert_eq!(format!("{:?}", twin.apply(at, &parsed, &kept)), format!("Ok({applied:?})"), "replicas agree");
        // A void frame is in no store.
        if !applied.is_void() {
            kept.0.push(parsed);
        }
        same_window &= state.settings().duplicate_window_ns == window;
        if input.is_empty() {
            break;
        }
        index = index.next();
        frame = step(&mut input, &state);
    }
    let image = state.image();
    assert_eq!(image, twin.image());
    let mut read = StreamState::from_image(&image).expect("what was written can be read");
    for frame in &kept.0 {
        read.rebuild(frame);
    }
    read.finish_rebuild().expect("the frames are those that were applied");
    // A rebuild finds ids again that a narrower window has dropped since.
    if same_window {
        assert_eq!(read.image(), image);
    }
    assert_eq!(read.digest(), state.digest());
}

pub(crate) fn image_seeds() -> Vec<Vec<u8>> {
    sample::life()
        .iter()
        .map(|(_, state)| {
            let mut image = state.image();
            image.truncate(image.len() - 4);
            image
        })
        .collect()
}

pub(crate) fn image(data: &[u8]) {
    let _ = StreamState::from_image(data);
    let sealed = [data, &crc32c::crc32c(data).to_le_bytes()].concat();
    let Ok(mut state) = StreamState::from_image(&sealed) else { return };
    for frame in sample::frames() {
        state.rebuild(&Frame::parse(frame.clone()).expect("a sealed frame"));
    }
    if state.finish_rebuild().is_err() {
        return;
    }
    let image = state.image();
    let again = StreamState::from_image(&image).expect("what was written can be read");
    assert_eq!(again.messages(), state.messages());
    let mut kept = Kept::default();
    let mut index = state.applied().index.get();
    for frame in sample::frames() {
        let Some(next) = index.checked_add(1) else { break };
        index = next;
        let frame = Frame::parse(frame.clone()).expect("a sealed frame");
        kept.0.push(frame.clone());
        let at = LogPosition { index: LogIndex::new(index), term: frame.header().term };
        let _ = state.apply(at, &frame, &kept);
    }
}
