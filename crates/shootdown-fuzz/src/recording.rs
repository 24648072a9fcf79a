//! Recordings: any bytes are a recording or an error, and what is read can be written and used.

use std::path::Path;

use shootdown_lab::recording::Reader;
use shootdown_lab::recording::codec::{Decoder, Encoder, Input, Output};
use shootdown_lab::recording::frame::{self, Kind};
use shootdown_lab::recording::model::{Event, Header, Trailer, What};
use shootdown_lab::recording::timeline::Timeline;
use shootdown_lab::recording::write::EventSink;
use shootdown_lab::replay::spread::spread;

use crate::Bytes;

/// The bytes are a file as found on a disk.
pub fn file(data: &[u8]) {
    read(data);
}

/// The bytes are the contents of frames whose checksums hold, which a fuzzer would not find by
/// itself: a kind and a chunk, again and again.
pub fn frames(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut made = Vec::new();
    let infallible = "a vector takes every byte";
    frame::write_preamble(&mut made).expect(infallible);
    if bytes.flag() {
        let mut plain = Output::default();
        Header::default().encode(&mut plain);
        frame::write_frame(&mut made, Kind::Header, plain.as_slice()).expect(infallible);
    }
    let mut events = 0;
    while !bytes.is_empty() {
        let kind = match bytes.byte() % 8 {
            0 => Kind::Header,
            1 => Kind::Trailer,
            _ => Kind::Events,
        };
        let plain = bytes.chunk();
        events += decode(plain);
        frame::write_frame(&mut made, kind, plain).expect(infallible);
    }
    let mut plain = Output::default();
    Trailer { events, ..Trailer::default() }.encode(&mut plain);
    frame::write_frame(&mut made, Kind::Trailer, plain.as_slice()).expect(infallible);
    read(&made);
}

/// Decodes one frame's events; whatever was understood must survive being encoded again.
fn decode(plain: &[u8]) -> u64 {
    let (mut decoder, mut input) = (Decoder::default(), Input::new(plain));
    let mut events = Vec::new();
    while let Ok(Some(event)) = decoder.event(&mut input) {
        events.push(event);
    }
    let (mut encoder, mut output) = (Encoder::default(), Output::default());
    for event in &events {
        encoder.event(event, &mut output);
    }
    let (mut decoder, mut input) = (Decoder::default(), Input::new(output.as_slice()));
    for event in &events {
        let again = decoder.event(&mut input).expect("what was encoded is well formed");
        assert_eq!(again.as_ref(), Some(event), "C1: decoding what was encoded gives the same");
    }
    assert!(input.is_empty(), "nothing else was encoded");
    events.len() as u64
}

fn read(data: &[u8]) {
    let path = Path::new("input.sdr");
    let all = Reader::new(data, path).and_then(Reader::read_all);
    match all {
        Ok((header, events, trailer)) => {
            assert_eq!(trailer.events, events.len() as u64);
            rewritten(&header, &events, &trailer);
            understood(&events);
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("input.sdr: "), "the file is named: {said}");
        }
    }
}

/// What was read can be written, and then reads the same.
pub(crate) fn rewritten(header: &Header, events: &[Event], trailer: &Trailer) {
    let mut sink = EventSink::new(Vec::new(), header).expect("a vector takes every byte");
    for event in events {
        let taken = sink.push(event).expect("a vector takes every byte");
        assert!(taken, "I3: events are in order of time");
    }
    let file = sink.finish(trailer.clone()).expect("a vector takes every byte");
    let reader = Reader::new(&file[..], Path::new("again.sdr")).expect("it was just written");
    let (header_again, events_again, trailer_again) =
        reader.read_all().expect("it was just written");
    assert_eq!(&header_again, header);
    assert_eq!(events_again, events);
    assert_eq!(trailer_again, Trailer { events: events.len() as u64, ..trailer.clone() });
}

/// Whatever the events are, they have a meaning, on as many CPUs as asked for.
pub(crate) fn understood(events: &[Event]) {
    let timeline = Timeline::of(events);
    let ordered = timeline.steps.windows(2).all(|pair| pair[0].time <= pair[1].time);
    assert!(ordered, "steps are in order of time");
    let asked = events.iter().filter(|e| matches!(e.what, What::RemoteFlush { .. })).count() as u64;
    let truth = timeline.truth;
    let sorted =
        truth.met_running + truth.met_lazy + truth.met_switching + truth.in_vain + truth.unknown;
    assert_eq!(sorted, asked, "every remote flush is put under one heading");
    let _ = (timeline.asked_while_switching(), timeline.met_running());
    for (cpus, copies) in [(1, 1), (3, 2)] {
        let again = spread(&timeline, cpus, copies);
        assert!(u32::from(again.cpus) <= cpus, "{} CPUs of {cpus}", again.cpus);
    }
}
