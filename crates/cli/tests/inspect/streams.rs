//! Record and event files.

use crate::{fixture, json, refused, run, text};

/// One framed record, with right checksums.
pub(crate) fn framed(data: &[u8]) -> Vec<u8> {
    let masked = downpour_formats::crc32c::masked;
    let length = (data.len() as u64).to_le_bytes();
    let mut out = length.to_vec();
    out.extend(masked(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked(data).to_le_bytes());
    out
}

#[test]
fn compression_is_recognised() {
    let plain = json(&["record", &fixture("records/plain"), "--limit", "-1"], 0);
    for kind in ["gzip", "zlib"] {
        let packed = json(
            &[
                "record",
                &fixture(&format!("records/{kind}")),
                "--limit",
                "-1",
            ],
            0,
        );
        assert_eq!(packed["compression"], kind);
        assert_eq!(packed["shown"], plain["shown"]);
    }
    let told = refused(
        &["record", &fixture("records/gzip"), "--compression", "none"],
        1,
    );
    assert!(told.contains("1 problem found"), "{told}");
}

#[test]
fn damage_is_named_and_what_lies_behind_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let path = path.to_str().unwrap();
    let mut data: Vec<u8> = [b"one".as_slice(), b"two", b"three"]
        .iter()
        .flat_map(|r| framed(r))
        .collect();
    let second = framed(b"one").len();
    data[second + 12] ^= 1;
    std::fs::write(path, &data).unwrap();
    let found = json(&["record", path], 1);
    assert_eq!(found["records"], 2);
    assert_eq!(found["damage"][0]["offset"], second);
    data[second] ^= 1;
    std::fs::write(path, &data).unwrap();
    let found = json(&["record", path], 1);
    assert_eq!(found["records"], 1);
    let told = text(&["record", path], 1);
    assert!(told.contains("what lies behind is lost"), "{told}");
    // Torn in the middle of a header, and of a body.
    let whole: Vec<u8> = [framed(b"one"), framed(b"two")].concat();
    for (cut, records) in [
        (second + 5, 1),
        (second + 13, 1),
        (second - 1, 0),
        (whole.len() - 1, 1),
    ] {
        std::fs::write(path, &whole[..cut]).unwrap();
        let found = json(&["record", path], 1);
        assert_eq!(found["records"], records, "{cut}");
        assert_eq!(found["damage"].as_array().unwrap().len(), 1);
    }
    std::fs::write(path, b"").unwrap();
    assert_eq!(json(&["record", path], 0)["records"], 0);
}

#[test]
fn examples_are_shown_by_their_features() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let path = path.to_str().unwrap();
    let example = std::fs::read(fixture("example/example")).unwrap();
    let sequence = std::fs::read(fixture("example/sequence")).unwrap();
    std::fs::write(
        path,
        [framed(&example), framed(&sequence), framed(b"\x1b[31mred")].concat(),
    )
    .unwrap();
    let found = json(&["record", path], 0);
    assert_eq!(
        (&found["examples"], &found["sequence_examples"]),
        (&1.into(), &1.into())
    );
    let told = text(&["record", path], 0);
    assert!(
        told.contains("Example") && told.contains("SequenceExample"),
        "{told}"
    );
    assert!(!told.contains('\x1b'), "{told}");
}

#[test]
fn events_are_sorted_by_tag_and_torn_tails_wait() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.out.tfevents.1.h");
    let whole = std::fs::read(fixture("events/two")).unwrap();
    std::fs::write(&path, &whole).unwrap();
    let path = path.to_str().unwrap();
    let all = json(&["events", path], 0);
    assert_eq!(all["files"][0]["file_version"], "brain.Event:2");
    let events = all["files"][0]["events"].as_u64().unwrap();
    assert!(events >= 2);
    let folder = dir.path().to_str().unwrap();
    assert_eq!(json(&["events", folder], 0), all);
    std::fs::write(path, &whole[..whole.len() - 1]).unwrap();
    let torn = json(&["events", path], 0);
    assert_eq!(torn["files"][0]["events"], events - 1);
    assert!(torn["files"][0]["torn_bytes"].as_u64().unwrap() > 0);
    let mut bad = whole.clone();
    let at = bad.len() - 6;
    bad[at] ^= 1;
    std::fs::write(path, &bad).unwrap();
    let why = refused(&["events", path], 1);
    assert!(why.contains("corrupted record at"), "{why}");
    let why = refused(&["events", path, "--tag", "nothing"], 2);
    assert!(why.starts_with("there is no tag 'nothing'"), "{why}");
    // Records that are no events.
    std::fs::write(path, framed(b"\xff\xff")).unwrap();
    run(&["events", path], 1);
}
