//! An event file of its own for each run, in a directory that TensorBoard watches.

use crate::hyperparameters::{self, Hyperparameter};
use downpour_build::{Graph, Result, Tensor, TensorError};
use downpour_client::RunMetadata;
use downpour_formats::Files;
use downpour_formats::event::{EventWriter, event_file_name};
use downpour_formats::storage::join;
use downpour_formats::summary::{SummaryContent, SummaryValue, encode_summary};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes what TensorBoard shows. Clones write to the same file.
///
/// ```
/// use downpour_formats::Files;
/// use downpour_formats::event::EventReader;
/// use downpour_train::Events;
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let events = Events::create(dir)?;
/// events.scalar(1, "loss", 0.5)?;
/// events.scalar(2, "loss", 0.25)?;
/// events.flush()?;
/// let mut reader = EventReader::open(&Files::new(), &events.path())?;
/// let mut steps = Vec::new();
/// while let Some(event) = reader.read()? {
///     steps.push(event.step);
/// }
/// // The first event names the format.
/// assert_eq!(steps, [0, 1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Events {
    writer: Arc<Mutex<EventWriter>>,
}

impl Events {
    /// Begins a file in a directory, which is made if it is not there.
    pub fn create(dir: &str) -> Result<Events> {
        let storage = Files::new();
        crate::saver::make_dirs(&storage, dir)?;
        let now = seconds();
        let unique = format!(".{}", std::process::id());
        let name = event_file_name("events", now as i64, "downpour", &unique);
        let writer = EventWriter::create(&storage, &join(dir, &name), now)?;
        Ok(Events {
            writer: Arc::new(Mutex::new(writer)),
        })
    }

    /// Path of the file.
    pub fn path(&self) -> String {
        self.writer.lock().path().to_owned()
    }

    /// Writes a number.
    pub fn scalar(&self, step: i64, tag: &str, value: f32) -> Result<()> {
        let content = SummaryContent::Scalar(value);
        let summary = encode_summary(vec![SummaryValue::new(tag.to_owned().into(), content)])?;
        self.writer.lock().write_summary(seconds(), step, &summary)
    }

    /// Writes what was chosen before the training, for TensorBoard's table of hyperparameters; its results are the
    /// scalars of the same file. Once, before them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path().to_str().unwrap();
    /// let events = downpour_train::Events::create(dir)?;
    /// let chosen = [("optimizer", "adagrad".into()), ("learning_rate", 0.1.into()), ("sync", true.into())];
    /// events.hyperparameters(&chosen)?;
    /// events.scalar(1000, "test_accuracy", 0.92)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hyperparameters(&self, chosen: &[(&str, Hyperparameter)]) -> Result<()> {
        let now = seconds();
        // What is looked at is the metadata; the value is what TensorBoard's own writer puts there.
        let nothing = Tensor::from_vec(vec![0.0f32], [1]);
        let nothing =
            nothing.map_err(|e: TensorError| downpour_build::Status::internal(e.to_string()))?;
        let mut value =
            SummaryValue::new(hyperparameters::TAG.into(), SummaryContent::Tensor(nothing));
        value.metadata = Some(hyperparameters::metadata(chosen, now).into());
        let summary = encode_summary(vec![value])?;
        self.writer.lock().write_summary(now, 0, &summary)
    }

    /// Writes what a summary operation computed.
    pub fn summary(&self, step: i64, summary: &Tensor) -> Result<()> {
        let wrong = |e: TensorError| downpour_build::Status::internal(e.to_string());
        for summary in summary.as_strings().map_err(wrong)? {
            self.writer.lock().write_summary(seconds(), step, summary)?;
        }
        Ok(())
    }

    /// Writes the graph, which TensorBoard draws.
    pub fn graph(&self, graph: &Graph) -> Result<()> {
        self.writer
            .lock()
            .write_graph(seconds(), &graph.to_graph_def()?)
    }

    /// Writes that training began.
    pub fn started(&self, step: i64) -> Result<()> {
        self.writer.lock().write_session(seconds(), step, None)
    }

    /// Writes that a checkpoint was saved.
    pub fn checkpoint(&self, step: i64, path: &str) -> Result<()> {
        self.writer
            .lock()
            .write_session(seconds(), step, Some(path))
    }

    /// Writes what a traced step did.
    pub fn run(&self, step: i64, tag: &str, metadata: &RunMetadata) -> Result<()> {
        let metadata = metadata.clone();
        self.writer.lock().write_run(seconds(), step, tag, metadata)
    }

    /// Makes all that was written visible to readers.
    pub fn flush(&self) -> Result<()> {
        self.writer.lock().flush()
    }
}

fn seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |d| d.as_secs_f64())
}
