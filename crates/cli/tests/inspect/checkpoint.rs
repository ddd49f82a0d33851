//! Checkpoints: what they hold, what changed, what is broken.

use crate::{copied, fixture, json, refused, run, text};

#[test]
fn every_form_of_path_leads_to_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = copied("bundle/merged", dir.path());
    let prefix = prefix.to_str().unwrap();
    let want = json(&["checkpoint", prefix], 0);
    assert_eq!(want["format"], "V2");
    assert_eq!(want["shards"], 3);
    let folder = dir.path().to_str().unwrap();
    for path in [
        format!("{prefix}.index"),
        format!("{prefix}.data-00001-of-00003"),
        folder.to_owned(),
    ] {
        assert_eq!(
            json(&["checkpoint", &path], 0)["tensors"],
            want["tensors"],
            "{path}"
        );
    }
    std::fs::write(
        dir.path().join("checkpoint"),
        "model_checkpoint_path: \"merged\"\n",
    )
    .unwrap();
    let state = format!("{folder}/checkpoint");
    assert_eq!(json(&["checkpoint", &state], 0)["tensors"], want["tensors"]);
}

#[test]
fn slices_strings_and_types_are_listed() {
    let sliced = json(&["checkpoint", &fixture("bundle/sliced")], 0);
    let tensors = sliced["tensors"].as_array().unwrap();
    let parted = tensors.iter().find(|t| t["slices"].is_array()).unwrap();
    let slices = parted["slices"].as_array().unwrap().len();
    assert_eq!(parted["parts"].as_array().unwrap().len(), slices);
    let mixed = text(&["checkpoint", &fixture("bundle/mixed"), "--stats"], 0);
    for want in ["bfloat16", "complex128", "string", "4 strings", "int64"] {
        assert!(mixed.contains(want), "{want}: {mixed}");
    }
    let step = json(
        &[
            "checkpoint",
            &fixture("bundle/mixed"),
            "--tensor",
            "global_step",
        ],
        0,
    );
    assert_eq!(step[0]["values"], serde_json::json!([1_234_567_890_123i64]));
    let v1 = json(&["checkpoint", &fixture("v1/whole")], 0);
    assert_eq!(v1["format"], "V1");
    run(&["checkpoint", &fixture("v1/whole"), "--verify"], 0);
    run(&["checkpoint", &fixture("v1/whole"), "--stats"], 0);
}

#[test]
fn a_flipped_bit_is_named_with_its_place_and_hides_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = copied("bundle/mixed", dir.path());
    let prefix = prefix.to_str().unwrap();
    let before = json(&["checkpoint", prefix], 0);
    let tensors = before["tensors"].as_array().unwrap();
    let victim = tensors.iter().find(|t| t["name"] == "t/float32").unwrap();
    let offset = victim["parts"][0]["offset"].as_u64().unwrap();
    let data = format!("{prefix}.data-00000-of-00001");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[offset as usize + 5] ^= 0x10;
    std::fs::write(&data, &bytes).unwrap();
    let found = json(&["checkpoint", prefix, "--verify"], 1);
    let damage = found["damage"].as_array().unwrap();
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert_eq!(damage[0]["tensor"], "t/float32");
    assert_eq!(damage[0]["offset"], offset);
    assert_eq!(damage[0]["file"], data);
    let told = text(&["checkpoint", prefix, "--verify"], 1);
    assert!(told.contains("restore an older checkpoint"), "{told}");
    // The others can still be looked at.
    let stats = text(&["checkpoint", prefix, "--stats"], 0);
    assert!(
        stats.contains("unreadable") && stats.contains("t/float64"),
        "{stats}"
    );
    run(&["checkpoint", prefix, "--tensor", "t/float64"], 0);
    let why = refused(&["checkpoint", prefix, "--tensor", "t/float32"], 1);
    assert!(why.contains("Checksum does not match"), "{why}");
}

#[test]
fn every_cut_of_an_index_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = copied("bundle/mixed", dir.path());
    let index = format!("{}.index", prefix.to_str().unwrap());
    let whole = std::fs::read(&index).unwrap();
    for cut in [0, 1, 47, 48, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&index, &whole[..cut]).unwrap();
        let why = refused(&["checkpoint", prefix.to_str().unwrap(), "--verify"], 1);
        assert!(why.contains("is damaged"), "{cut}: {why}");
    }
}

#[test]
fn missing_and_short_data_files_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = copied("bundle/merged", dir.path());
    let prefix = prefix.to_str().unwrap();
    std::fs::remove_file(format!("{prefix}.data-00001-of-00003")).unwrap();
    let short = format!("{prefix}.data-00002-of-00003");
    let bytes = std::fs::read(&short).unwrap();
    std::fs::write(&short, &bytes[..bytes.len() - 1]).unwrap();
    let told = text(&["checkpoint", prefix, "--verify"], 1);
    assert!(
        told.contains("data-00001-of-00003: the file is missing"),
        "{told}"
    );
    assert!(
        told.contains("the file ends before the tensor does"),
        "{told}"
    );
    let why = refused(&["checkpoint", prefix], 1);
    assert!(why.ends_with("--verify shows what and where"), "{why}");
}

#[test]
fn differences_are_found_and_set_the_exit_code() {
    let mixed = fixture("bundle/mixed");
    let same = json(&["checkpoint", &mixed, "--diff", &mixed], 0);
    assert_eq!(same["changes"], serde_json::json!([]));
    let told = text(
        &["checkpoint", &mixed, "--diff", &fixture("bundle/sliced")],
        1,
    );
    assert!(
        told.contains("only in the first") && told.contains("only in the second"),
        "{told}"
    );
}

#[test]
fn a_directory_without_a_whole_checkpoint_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let why = refused(&["checkpoint", folder], 2);
    assert!(
        why.ends_with("holds no checkpoint: no file there ends in .index"),
        "{why}"
    );
    std::fs::write(dir.path().join("m-1.index"), b"junk").unwrap();
    let why = refused(&["checkpoint", folder], 2);
    assert!(why.contains("m-1"), "{why}");
    // A state file that leads elsewhere or nowhere.
    for state in [
        "model_checkpoint_path: \"../../etc/passwd\"",
        "model_checkpoint_path: \"gone\"",
        "nonsense",
    ] {
        std::fs::write(dir.path().join("checkpoint"), state).unwrap();
        refused(&["checkpoint", folder], 2);
    }
}
