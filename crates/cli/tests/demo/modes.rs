//! In every mode, what terminal, dashboard, metrics and summary show is the global step and its slope:
//! compared with the steps and times in the event files, which come from the training itself.

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long is watched, after the first steps.
const WATCHED: Duration = Duration::from_secs(8);
/// How long the first steps may take to come.
const LONG: Duration = Duration::from_secs(120);

struct Demo {
    child: Child,
    page: String,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Demo {
    fn start(dir: &Path, args: &[&str]) -> Demo {
        let mut child = Command::new(env!("CARGO_BIN_EXE_downpour"))
            .args(args)
            .args([
                "--ps=1",
                "--workers=2",
                "--steps=1000000000",
                "--dashboard=0",
            ])
            .current_dir(dir)
            .env_remove("TF_CONFIG")
            .env("XDG_CACHE_HOME", dir.join("cache"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        let page = line
            .split("http://")
            .nth(1)
            .unwrap_or_else(|| panic!("{line}"));
        let page = page.trim().trim_end_matches('/').to_owned();
        let (said, lines) = std::sync::mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        Demo { child, page, lines }
    }

    fn get(&self, target: &str) -> String {
        let mut socket = TcpStream::connect(&self.page).unwrap();
        let host = &self.page;
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn json(&self, target: &str) -> Value {
        serde_json::from_str(&self.get(target)).unwrap()
    }

    /// Steps and times in the event files.
    fn points(&self) -> Vec<(f64, f64)> {
        let curves = self.json("/api/scalars");
        let mut curves = curves["curves"].as_array().unwrap().iter();
        let loss = curves.rfind(|c| c["tag"] == "loss");
        let points = loss.map(|c| c["points"].as_array().unwrap().clone());
        let number = |v: &Value| v.as_f64().unwrap();
        let points = points.unwrap_or_default();
        points
            .iter()
            .map(|p| (number(&p[1]), number(&p[0])))
            .collect()
    }

    /// The global step, by a line of the metrics.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics");
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        for _ in 0..2 {
            let id = self.child.id().to_string();
            let _ = Command::new("kill").args(["-s", "INT", &id]).status();
        }
        let _ = self.child.wait();
    }
}

/// `step 1,234  56.7 steps/s  loss …` as step and speed.
fn told(line: &str) -> Option<(f64, f64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |word: &str| word.replace(',', "").parse().ok();
    match words[..] {
        ["step" | "iteration", step, speed, unit, ..] if unit.ends_with("s/s") => {
            Some((number(step)?, number(speed)?))
        }
        _ => None,
    }
}

fn check(args: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path(), args);
    let begin = Instant::now();
    while demo.points().len() < 3 {
        assert!(begin.elapsed() < LONG, "{args:?} does not train");
        std::thread::sleep(Duration::from_millis(200));
    }
    // What is shown is a mean over seconds: let those before the training pass.
    std::thread::sleep(WATCHED);
    while demo.lines.try_recv().is_ok() {}
    let (first, from) = (demo.points().last().copied().unwrap(), Instant::now());
    let (mut pages, mut terminal) = (Vec::new(), Vec::new());
    while from.elapsed() < WATCHED {
        std::thread::sleep(Duration::from_millis(500));
        pages.push(
            demo.json("/api/state")["global_step"]["per_second"]
                .as_f64()
                .unwrap(),
        );
        terminal.extend(demo.lines.try_iter().filter_map(|line| told(&line)));
    }
    let last = demo.points().last().copied().unwrap();
    let real = (last.1 - first.1) / (last.0 - first.0);
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    let speeds: Vec<f64> = terminal.iter().map(|t| t.1).collect();
    let shown = [
        ("page", mean(&pages)),
        ("terminal", mean(&speeds)),
        ("metrics", demo.metric("downpour_global_steps_per_second")),
    ];
    for (where_, speed) in shown {
        // The machine may be busy with other things for a part of the time.
        let ratio = speed / real;
        assert!(
            (0.6..1.67).contains(&ratio),
            "{args:?}: the {where_} shows {speed:.1} steps/s of {real:.1}"
        );
    }
    let step = demo.json("/api/state")["global_step"]["value"]
        .as_f64()
        .unwrap();
    // Tasks are asked once a second, so that event files may be a little ahead as well.
    assert!(
        (step - last.1).abs() <= real * 10.0 + 5.0,
        "{step} is shown of {}",
        last.1
    );
    let (step, _) = terminal.last().unwrap();
    assert!(
        (last.1 - step).abs() <= real * 5.0 + 5.0,
        "{step} is told of {}",
        last.1
    );
}

#[test]
fn asynchronous() {
    check(&["demo", "mnist"]);
}

#[test]
fn synchronous() {
    check(&["demo", "mnist", "--sync"]);
}

#[test]
fn downpour() {
    check(&["demo", "downpour"]);
}

#[test]
fn sandblaster() {
    check(&["demo", "sandblaster", "--images=1000"]);
}
