//! The file format keeps its promises: what was written is read, and anything else is refused with
//! a place.

use std::path::Path;

use proptest::prelude::*;
use shootdown_lab::recording::model::{
    Call, CallArgs, Cpu, Event, Extent, FlushStep, Header, OffCpu, Origin, Purpose, Tid, Trailer,
    What,
};
use shootdown_lab::recording::write::EventSink;
use shootdown_lab::recording::{Problem, Reader, RecordingError, Writer};

fn header() -> Header {
    Header {
        kernel: "6.18.44".into(),
        cpu_model: "Some CPU".into(),
        cpus: 2,
        page_size: 4096,
        hypervisor: "kvm".into(),
        command: vec!["sort".into(), "-n".into()],
        tool: "perf 6.1".into(),
        started_unix: 1_795_252_109,
        clock: "CLOCK_MONOTONIC".into(),
        clock_base: 1_615_813_518_701,
    }
}

fn trailer(events: u64) -> Trailer {
    Trailer {
        events,
        duration: 5_000_000_000,
        exit_status: Some(-1),
        tlb_interrupts: Some(vec![1448, 1412]),
        foreign_remote_flushes: 6,
        lost: 0,
    }
}

fn write(events: &[Event]) -> Vec<u8> {
    let mut sink = EventSink::new(Vec::new(), &header()).expect("memory");
    for event in events {
        assert!(sink.push(event).expect("memory"));
    }
    sink.finish(trailer(0)).expect("memory")
}

fn read(bytes: &[u8]) -> Result<(Header, Vec<Event>, Trailer), RecordingError> {
    Reader::new(bytes, Path::new("a.sdr"))?.read_all()
}

fn some_events() -> Vec<Event> {
    let at = |time, cpu, tid, what| Event { time, cpu: Cpu(cpu), tid: Tid(tid), what };
    vec![
        at(0, 0, 7, What::Task { pid: 7, origin: Origin::Command, name: "sort".into() }),
        at(0, 0, 7, What::Exec),
        at(90, 1, 0, What::Switch { next: Tid(7), off: OffCpu::Preempted }),
        at(
            95,
            1,
            7,
            What::Fault { page: 0x7f00_0000_0123, write: true, execute: false, protection: true },
        ),
        at(
            99,
            1,
            7,
            What::Enter(CallArgs {
                call: Call::Munmap,
                addr: 0x07f0_0000_0012_3000,
                len: 4096,
                mode: 0,
                extra: 0,
            }),
        ),
        at(100, 1, 7, What::Flush { step: FlushStep::Ask, extent: Extent::Pages(1) }),
        at(101, 1, 7, What::RemoteFlush { target: Cpu(0) }),
        at(120, 1, 7, What::Leave { call: Call::Munmap, result: 0 }),
        at(130, 1, 7, What::Exit),
    ]
}

fn what() -> impl Strategy<Value = What> {
    let step = prop_oneof![
        Just(FlushStep::Switch),
        Just(FlushStep::Responded),
        Just(FlushStep::Local),
        Just(FlushStep::LocalSpace),
        Just(FlushStep::Ask),
        Just(FlushStep::WrongCpu),
    ];
    let call = prop_oneof![
        Just(Call::Mmap),
        Just(Call::Munmap),
        Just(Call::Mprotect),
        Just(Call::Madvise),
        Just(Call::Mremap),
        Just(Call::Msync),
        Just(Call::Brk),
    ];
    let off = prop_oneof![Just(OffCpu::Preempted), Just(OffCpu::Blocked), Just(OffCpu::Dead)];
    let origin = prop_oneof![Just(Origin::Command), Just(Origin::Foreign), Just(Origin::Kernel)];
    let purpose = prop_oneof![Just(Purpose::Flush), Just(Purpose::Reschedule), Just(Purpose::Call)];
    let extent = prop_oneof![Just(Extent::Everything), (0..u64::MAX / 2).prop_map(Extent::Pages)];
    let tid = || (0..Tid::LIMIT).prop_map(Tid);
    let cpu = || (0..u16::MAX).prop_map(Cpu);
    prop_oneof![
        (any::<u32>(), origin, ".{0,40}").prop_map(|(pid, origin, name)| What::Task {
            pid,
            origin,
            name
        }),
        (tid(), off).prop_map(|(next, off)| What::Switch { next, off }),
        tid().prop_map(|task| What::Wakeup { task }),
        (tid(), cpu()).prop_map(|(task, to)| What::Migrate { task, to }),
        (tid(), any::<bool>()).prop_map(|(child, shares_space)| What::Fork { child, shares_space }),
        Just(What::Exec),
        Just(What::Exit),
        ".{0,40}".prop_map(|name| What::Rename { name }),
        (step, extent).prop_map(|(step, extent)| What::Flush { step, extent }),
        cpu().prop_map(|target| What::RemoteFlush { target }),
        cpu().prop_map(|target| What::KernelFlush { target }),
        (proptest::option::of(cpu()), purpose)
            .prop_map(|(target, purpose)| What::Ipi { target, purpose }),
        (call.clone(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(call, addr, len, mode, extra)| What::Enter(CallArgs { call, addr, len, mode, extra })
        ),
        (call, any::<i64>()).prop_map(|(call, result)| What::Leave { call, result }),
        (0..1u64 << 52, any::<[bool; 3]>()).prop_map(|(page, [write, execute, protection])| {
            What::Fault { page, write, execute, protection }
        }),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec((0..1u64 << 40, 0..5u16, 0..9u32, what()), 0..200).prop_map(|raw| {
        let mut time = 0;
        raw.into_iter()
            .map(|(step, cpu, tid, what)| {
                time += step;
                Event { time, cpu: Cpu(cpu), tid: Tid(tid), what }
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn c1_what_was_written_is_read(events in events()) {
        let (header_read, events_read, trailer_read) = read(&write(&events)).expect("sound");
        prop_assert_eq!(header_read, header());
        prop_assert_eq!(trailer_read, trailer(events.len() as u64));
        prop_assert_eq!(events_read, events);
    }

    #[test]
    fn c2_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut file = shootdown_lab::recording::frame::MAGIC.to_vec();
        file.extend([1, 0]);
        let mut framed = file.clone();
        use shootdown_lab::recording::frame::{Kind, write_frame};
        write_frame(&mut framed, Kind::Header, &bytes).expect("memory");
        write_frame(&mut framed, Kind::Events, &bytes).expect("memory");
        let _ = read(&framed);
        file.extend(&bytes);
        prop_assert!(read(&file).is_err());
        // Past the header, arbitrary bytes with a sound checksum reach the event decoder.
        let mut sink = Vec::new();
        shootdown_lab::recording::frame::write_preamble(&mut sink).expect("memory");
        let mut plain = shootdown_lab::recording::codec::Output::default();
        header().encode(&mut plain);
        write_frame(&mut sink, Kind::Header, plain.as_slice()).expect("memory");
        write_frame(&mut sink, Kind::Events, &bytes).expect("memory");
        prop_assert!(read(&sink).is_err(), "there is no trailer");
    }
}

#[test]
fn many_frames_are_one_stream() {
    let events: Vec<_> = (0..200_000u64)
        .map(|i| Event {
            time: i * 100,
            cpu: Cpu((i % 3) as u16),
            tid: Tid(9),
            what: What::Fault {
                page: i * i % 70_001,
                write: i % 2 == 0,
                execute: false,
                protection: false,
            },
        })
        .collect();
    let bytes = write(&events);
    assert!(bytes.len() < events.len() * 6, "{} bytes", bytes.len());
    let (_, read_back, _) = read(&bytes).expect("sound");
    assert!(read_back == events);
}

#[test]
fn i2_every_flipped_byte_is_noticed() {
    let sound = write(&some_events());
    assert_eq!(read(&sound).expect("sound").1, some_events());
    for at in 0..sound.len() {
        for bit in [0x01, 0x80, 0xff] {
            let mut bytes = sound.clone();
            bytes[at] ^= bit;
            match read(&bytes) {
                Err(RecordingError::Bad { offset, .. }) => assert!(offset <= sound.len() as u64),
                other => panic!("byte {at} ^ {bit:#x}: {other:?}"),
            }
        }
    }
}

#[test]
fn i2_every_truncation_is_noticed() {
    let sound = write(&some_events());
    for len in 0..sound.len() {
        match read(&sound[..len]) {
            Err(RecordingError::Bad { offset, problem: Problem::Truncated { .. }, .. }) => {
                assert_eq!(offset, len as u64, "the place is where the file ends");
            }
            other => panic!("{len} bytes: {other:?}"),
        }
    }
}

#[test]
fn foreign_newer_and_longer_files_say_so() {
    let error = read(b"PERFILE2 and so on").expect_err("foreign").to_string();
    assert_eq!(
        error,
        "a.sdr: byte 0: not a shootdown recording; expected the bytes 89 53 44 52 0d 0a 1a 0a, \
         found 50 45 52 46 49 4c 45 32"
    );
    let mut newer = write(&some_events());
    newer[8] = 2;
    let error = read(&newer).expect_err("newer").to_string();
    assert_eq!(
        error,
        "a.sdr: byte 8: format version 2; expected version 1 (the only one this program reads)"
    );
    let mut longer = write(&some_events());
    longer.push(0);
    let error = read(&longer).expect_err("longer");
    assert!(matches!(error, RecordingError::Bad { problem: Problem::TrailingBytes, .. }));
}

#[test]
fn i1_a_file_appears_only_when_it_is_whole() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a.sdr");
    let files = || std::fs::read_dir(dir.path()).expect("readable").count();
    let mut writer = Writer::create(&path, &header()).expect("writable");
    writer.push(&some_events()[0]).expect("in order");
    assert!(!path.exists());
    drop(writer);
    assert_eq!(files(), 0, "nothing half-written remains");

    let mut writer = Writer::create(&path, &header()).expect("writable");
    for event in some_events() {
        writer.push(&event).expect("in order");
    }
    let size = writer.finish(trailer(0)).expect("writable");
    assert_eq!(size, std::fs::metadata(&path).expect("there").len());
    assert_eq!(files(), 1);
    let (_, events, _) = Reader::open(&path).and_then(Reader::read_all).expect("sound");
    assert_eq!(events, some_events());
}

#[test]
fn i3_events_out_of_order_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut writer = Writer::create(&dir.path().join("a.sdr"), &header()).expect("writable");
    let event = |time| Event { time, cpu: Cpu(0), tid: Tid(1), what: What::Exec };
    writer.push(&event(10)).expect("in order");
    let error = writer.push(&event(9)).expect_err("older");
    assert!(matches!(error, RecordingError::Unordered { time: 9, previous: 10 }));
}

#[test]
fn f1_nothing_is_written_that_no_reader_would_accept() {
    let header = Header { command: vec!["x".repeat(1 << 20)], ..Header::default() };
    let error = EventSink::new(Vec::new(), &header).expect_err("longer than a frame");
    assert!(error.to_string().contains("1 MiB"), "{error}");
}
