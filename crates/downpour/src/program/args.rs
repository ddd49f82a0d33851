//! A program's command line: the same flags for every [`Program`](super::Program).

use super::{Options, Program, Stop, run};
use crate::{ClusterSpec, Definition, Role};
use downpour_build::Result as Built;
use downpour_train::{CoordinatorUrl, Every};
use std::process::ExitCode;
use std::time::Duration;

/// What every program can be told.
const USAGE: &str = "\
Options of every Downpour program:
  --ps N              parameter servers of a cluster in this process [1]
  --workers N         workers of a cluster in this process [1]
  --partitions N      how many workers compute one replica of the model together [1]
  --sync              one update for all workers instead of one for each
  --backups N         with --sync: how many workers an update does not wait for [0]
  --steps N           steps of all workers together
  --dir DIR           where checkpoints are restored from and saved to
  --save-seconds N    how often they are saved [60]
  --elect-seconds N   with --dir: when the chief is silent for so long, another worker takes over
  --coordinator URL   where the chief is elected: etcd://HOST:PORT[,…]/JOB, zk://HOST:PORT[,…]/JOB or file:///DIR;
                      DOWNPOUR_COORDINATOR says it too. Its lease is --elect-seconds [1]
  --json              end with one line of JSON
  --help              this text
One task of a cluster of many processes instead, also by TF_CONFIG:
  --ps_hosts HOSTS --worker_hosts HOSTS --job_name JOB --task_index N";

/// What a command line asks for.
///
/// ```
/// use downpour::program::Args;
/// let flags = ["--ps", "2", "--workers=3", "--sync", "--json"].map(str::to_owned);
/// let args = Args::parse(flags, None)?;
/// assert_eq!((args.options.ps, args.options.workers), (2, 3));
/// assert!(args.options.sync && args.json && !args.help);
/// let wrong = Args::parse(["--ps".to_owned(), "many".to_owned()], None);
/// assert_eq!(wrong.err().as_deref(), Some("--ps needs a number, not 'many'"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Args {
    /// How to run.
    pub options: Options,
    /// Whether the report is to be JSON.
    pub json: bool,
    /// Whether only the usage was asked for.
    pub help: bool,
}

impl Args {
    /// Reads flags, and `TF_CONFIG` if they name no cluster.
    pub fn parse(
        args: impl IntoIterator<Item = String>,
        tf_config: Option<&str>,
    ) -> Result<Args, String> {
        Args::parse_over(Options::default(), args, tf_config)
    }

    /// As [`Args::parse`]; what the flags do not say stays as it is in `options`.
    pub fn parse_over(
        options: Options,
        args: impl IntoIterator<Item = String>,
        tf_config: Option<&str>,
    ) -> Result<Args, String> {
        let mut parsed = Args {
            options,
            json: false,
            help: false,
        };
        let mut flags = Definition::default();
        let mut hosts = ClusterSpec::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (name, mut given) = match arg.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (arg, None),
            };
            let mut value = || {
                let value = given.take().or_else(|| args.next());
                value.ok_or_else(|| format!("{name} needs a value"))
            };
            match name.replace('_', "-").as_str() {
                "--ps" => parsed.options.ps = number(&name, value()?)?,
                "--workers" => parsed.options.workers = number(&name, value()?)?,
                "--partitions" => parsed.options.partitions = number(&name, value()?)?,
                "--sync" => parsed.options.sync = true,
                "--backups" => parsed.options.backups = number(&name, value()?)?,
                "--steps" => parsed.options.steps = number(&name, value()?)?,
                "--dir" => parsed.options.dir = Some(value()?),
                "--save-seconds" => {
                    let seconds = number(&name, value()?)?;
                    parsed.options.save = Every::Time(Duration::from_secs(seconds));
                }
                "--elect-seconds" => {
                    let seconds = number(&name, value()?)?;
                    parsed.options.elect = Some(Duration::from_secs(seconds));
                }
                "--coordinator" => {
                    parsed.options.coordinator = Some(value()?.parse().map_err(text)?);
                }
                "--json" => parsed.json = true,
                "--help" => parsed.help = true,
                "--ps-hosts" => hosts.add_hosts("ps", &value()?).map_err(text)?,
                "--worker-hosts" => hosts.add_hosts("worker", &value()?).map_err(text)?,
                "--job-name" => flags.job = Some(value()?),
                "--task-index" => flags.task = Some(number(&name, value()?)?),
                _ => return Err(format!("'{name}' is no option\n{USAGE}")),
            }
        }
        if hosts.num_tasks() > 0 {
            flags.cluster = Some(hosts);
        }
        let mut sources = vec![("the flags".to_owned(), flags)];
        if let Some(config) = tf_config.filter(|c| !c.trim().is_empty()) {
            let config = Definition::from_tf_config(config).map_err(text)?;
            sources.push(("TF_CONFIG".to_owned(), config));
        }
        if sources.iter().any(|(_, s)| s.cluster.is_some()) {
            parsed.options.role = Some(Role::resolve(&sources).map_err(text)?);
        }
        Ok(parsed)
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn number<T: std::str::FromStr>(name: &str, value: String) -> Result<T, String> {
    let wrong = |_| format!("{name} needs a number, not '{value}'");
    value.parse().map_err(wrong)
}

/// Shows warnings on standard error: tasks that are waited for, lost, or back. `DOWNPOUR_LOG` says
/// what else to show (`info`, `downpour_master=debug`). A log that the program has set up stays.
///
/// ```
/// // It stands first in `main`; a second call changes nothing.
/// downpour::program::log_to_stderr();
/// downpour::program::log_to_stderr();
/// tracing::warn!("this is shown");
/// assert!(tracing::event_enabled!(tracing::Level::WARN));
/// ```
pub fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("DOWNPOUR_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_terminal);
    // An error means that there is a log already.
    let _ = log.with_writer(std::io::stderr).try_init();
}

/// The service that `downpour run --coordinator` names to the programs it starts.
fn coordinator_of_environment() -> Result<Option<CoordinatorUrl>, String> {
    match std::env::var("DOWNPOUR_COORDINATOR") {
        Ok(url) if !url.is_empty() => url.parse().map(Some).map_err(text),
        _ => Ok(None),
    }
}

/// A `main` for a program: reads the command line and `TF_CONFIG`, runs, prints the report.
///
/// ```
/// use downpour::program::{self, Program, Worker};
/// use downpour::train::MonitoredSession;
/// use downpour::{Operation, Result};
/// use std::process::ExitCode;
///
/// /// Does nothing but count its steps.
/// struct Count;
///
/// impl Program for Count {
///     const STEPS: i64 = 3;
///     type Model = Operation;
///
///     fn build(&self, worker: &Worker) -> Result<Operation> {
///         Ok(worker.global_step().assign_add(&worker.graph().constant(1i64)))
///     }
///
///     fn step(&self, count: &mut Operation, session: &mut MonitoredSession) -> Result<()> {
///         session.step().target(count).run()
///     }
/// }
///
/// // Prints `steps: 3` and more; with `--help`, what else it can be told.
/// fn main() -> ExitCode {
///     program::main(|| Ok(Count))
/// }
/// ```
#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is a program's main, not the library"
)]
pub fn main<P: Program>(make: impl FnOnce() -> Built<P>) -> ExitCode {
    let config = std::env::var("TF_CONFIG").ok();
    let coordinator = match coordinator_of_environment() {
        Ok(coordinator) => coordinator,
        Err(e) => {
            eprintln!("error: DOWNPOUR_COORDINATOR: {e}");
            return ExitCode::from(2);
        }
    };
    let options = Options {
        steps: P::STEPS,
        coordinator,
        ..Options::default()
    };
    let args = match Args::parse_over(options, std::env::args().skip(1), config.as_deref()) {
        Ok(args) => args,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    if args.help {
        println!("{USAGE}\nWithout --steps this one takes {}.", P::STEPS);
        return ExitCode::SUCCESS;
    }
    log_to_stderr();
    let options = Options {
        stop: Stop::on_signals(),
        ..args.options
    };
    let outcome = make()
        .map_err(Into::into)
        .and_then(|program| run(&program, &options));
    match outcome {
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
        Ok(report) => {
            let shown = report.iter().map(|(k, v)| match args.json {
                true => format!("\"{k}\":{v}"),
                false => format!("{k}: {v}"),
            });
            let shown: Vec<String> = shown.collect();
            match args.json {
                true => println!("{{{}}}", shown.join(",")),
                false => println!("{}", shown.join("\n")),
            }
            ExitCode::SUCCESS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(str::to_owned), None)
    }

    #[test]
    fn flags_say_how_many_tasks_or_which_one() {
        let args = parse("--ps 2 --workers=3 --sync --backups 1 --json").unwrap();
        let o = &args.options;
        assert_eq!(
            (o.ps, o.workers, o.sync, o.backups, args.json),
            (2, 3, true, 1, true)
        );
        let args = parse("--ps_hosts a:1 --worker_hosts=b:1,c:1 --job_name worker --task_index 1");
        let role = args.unwrap().options.role.unwrap();
        assert_eq!((role.job.as_str(), role.task), ("worker", 1));
    }

    #[test]
    fn a_program_has_its_own_number_of_steps() {
        let own = || Options {
            steps: 7,
            ..Options::default()
        };
        let parsed = |flags: &[&str]| {
            let flags = flags.iter().map(|f| (*f).to_owned());
            Args::parse_over(own(), flags, None).unwrap().options.steps
        };
        assert_eq!((parsed(&[]), parsed(&["--steps", "9"])), (7, 9));
    }

    #[test]
    fn wrong_flags_are_named() {
        for (line, text) in [
            ("--what", "'--what' is no option"),
            ("--ps", "--ps needs a value"),
            ("--steps many", "--steps needs a number, not 'many'"),
            ("--coordinator etcd://a/job", "'a' is not HOST:PORT"),
            ("--coordinator a:2379", "no scheme"),
            ("--ps_hosts a:1 --job_name worker", "worker"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn tf_config_names_the_role() {
        let config =
            r#"{"cluster":{"ps":["a:1"],"chief":["b:1"]},"task":{"type":"chief","index":0}}"#;
        let args = Args::parse([], Some(config)).unwrap();
        assert_eq!(args.options.role.unwrap().job, "chief");
    }
}
