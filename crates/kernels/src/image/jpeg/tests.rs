//! Files of every sampling and coding, beside what TensorFlow 2.21 makes of them
//! (`tests/fixtures/jpeg/expected.txt`: file, ratio, fancy, transform, FNV-1a of the pixels).

use super::decoder::{Failure, Image, Wanted, decode, shape};

fn wanted() -> Wanted {
    Wanted {
        channels: 0,
        ratio: 1,
        fancy: true,
        fast: true,
        recover: false,
        fraction: 1.0,
        crop: None,
    }
}

fn file(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/jpeg");
    std::fs::read(format!("{folder}/{name}.jpg")).unwrap()
}

fn run(file: &[u8], wanted: &Wanted) -> Result<Image, Failure<()>> {
    decode(file, wanted, &|_| Ok(()))
}

fn hash(values: &[u8]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn pixels_are_those_of_tensorflow() {
    let list = include_str!("../../../tests/fixtures/jpeg/expected.txt");
    for line in list.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [name, ratio, fancy, transform, expected] = fields[..] else {
            panic!("{line}");
        };
        let wanted = Wanted {
            ratio: ratio.parse().unwrap(),
            fancy: fancy == "1",
            fast: transform == "fast",
            ..wanted()
        };
        let got = match run(&file(name), &wanted) {
            Ok(image) => format!("{:016x}", hash(&image.values)),
            Err(_) => "refused".to_owned(),
        };
        assert_eq!(got, expected, "{line}");
    }
}

#[test]
fn what_is_missing_is_black_or_grey_or_an_error() {
    let whole = file("420");
    let cut = |bytes: usize| &whole[..whole.len() - bytes];
    let sum = |image: Image| image.values.iter().map(|v| u64::from(*v)).sum::<u64>();
    let lenient = Wanted {
        fraction: 0.1,
        ..wanted()
    };
    let recovered = Wanted {
        recover: true,
        ..wanted()
    };
    for part in [cut(300), cut(100), cut(2)] {
        assert_eq!(run(part, &wanted()).err(), Some(Failure::Bad));
    }
    // Too few rows are there; of the others TensorFlow's sums.
    assert_eq!(run(cut(300), &lenient).err(), Some(Failure::Bad));
    for part in [cut(100), cut(2)] {
        let image = run(part, &lenient).unwrap();
        assert!(image.values.iter().rev().take(29 * 3).all(|v| *v == 0));
        assert_eq!(sum(image), 162_860);
    }
    let sums = [300, 200, 100, 2].map(|n| sum(run(cut(n), &recovered).unwrap()));
    assert_eq!(sums, [264_590, 274_810, 273_875, 267_410]);
}

#[test]
fn a_window_is_a_part_of_the_whole_where_colours_are_repeated() {
    let plain = Wanted {
        fancy: false,
        ..wanted()
    };
    let whole = run(&file("420"), &plain).unwrap();
    let cut = Wanted {
        crop: Some([3, 18, 17, 9]),
        ..plain
    };
    let part = run(&file("420"), &cut).unwrap();
    assert_eq!([part.height, part.width], [17, 9]);
    for y in 0..17 {
        let start = ((y + 3) * 29 + 18) * 3;
        assert_eq!(part.values[y * 27..][..27], whole.values[start..][..27]);
    }
    for crop in [[3, 18, 21, 9], [0, 0, 0, 1], [-1, 0, 2, 2], [i32::MAX; 4]] {
        let outside = Wanted {
            crop: Some(crop),
            ..wanted()
        };
        assert!(run(&file("420"), &outside).is_err());
    }
}

#[test]
fn memory_is_asked_for_before_it_is_taken() {
    for name in ["420", "progressive"] {
        let refused = decode(&file(name), &wanted(), &|dims| Err(dims.to_vec()));
        assert_eq!(refused.err(), Some(Failure::Refused(vec![23, 29, 3])));
    }
    assert_eq!(shape(&file("cmyk")), Ok([23, 29, 4]));
}

#[test]
fn damaged_files_end_without_a_panic() {
    let mut seed = 77u64;
    let mut draw = |n: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        (seed >> 33) as usize % n
    };
    for name in ["420", "progressive", "restarts", "ycck", "scans", "410"] {
        let whole = file(name);
        for _ in 0..60 {
            let mut bad = whole.clone();
            for _ in 0..=draw(3) {
                let at = draw(bad.len());
                bad[at] = [0, 0xff, draw(256) as u8][draw(3)];
            }
            bad.truncate(draw(bad.len()) + 1);
            let wanted = Wanted {
                ratio: 1 << draw(4),
                recover: draw(2) == 0,
                fraction: 0.0,
                ..wanted()
            };
            let small = |dims: &[usize]| match dims.iter().product::<usize>() < 1 << 20 {
                true => Ok(()),
                false => Err(()),
            };
            let _ = decode(&bad, &wanted, &small);
        }
    }
}

#[test]
fn scans_without_end_are_refused() {
    let whole = file("scans");
    let first = whole.windows(2).position(|w| w == [0xff, 0xda]).unwrap();
    let mut endless = whole[..first].to_vec();
    for _ in 0..1200 {
        endless.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0]);
    }
    endless.extend([0xff, 0xd9]);
    assert_eq!(run(&endless, &wanted()).err(), Some(Failure::Bad));
}
