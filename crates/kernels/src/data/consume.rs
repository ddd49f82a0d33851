//! Ops that look at a dataset or use it up: its only element, its size, its records in a file.

use super::dataset::{Dataset, DatasetVariant};
use super::define;
use super::task::run_op;
use crate::io::file::path;
use crate::io::storage;
use downpour_formats::record::{Compression, RecordWriter};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Registry};
use downpour_tensor::{DType, Tensor, Variant, VariantValue};
use std::any::Any;

pub(super) fn register(r: &mut Registry) {
    r.add("DatasetToSingleElement", |_| {
        Built::waiting(|op| {
            let dataset = match op.input(0).and_then(Dataset::from_tensor) {
                Ok(dataset) => dataset.clone(),
                Err(e) => return op.finish(Err(e)),
            };
            let device = op.env().device.clone();
            run_op(op, async move {
                let mut walk = dataset.start(&device, "SingleElementIterator")?;
                let element = walk.next().await?;
                let element =
                    element.ok_or_else(|| Status::invalid_argument("Dataset was empty."))?;
                if walk.next().await?.is_some() {
                    return Err(Status::invalid_argument(
                        "Dataset had more than one element.",
                    ));
                }
                Ok(element)
            });
        })
    });
    for op in ["DatasetCardinality", "ExperimentalDatasetCardinality"] {
        r.add(op, |_| {
            Built::cheap(|ctx| {
                let cardinality = define::input(ctx, 0)?.cardinality();
                ctx.set_output(0, Tensor::scalar(cardinality.number()));
                Ok(())
            })
        });
    }
    for op in ["DatasetToTFRecord", "ExperimentalDatasetToTFRecord"] {
        r.add(op, |_| to_tf_record());
    }
    r.add("WrapDatasetVariant", |_| {
        Built::cheap(|ctx| {
            let input = ctx.input(0)?;
            if !input.shape().is_scalar() || !holds::<DatasetVariant>(input) {
                return Err(not_scalar());
            }
            let wrapped = Wrapped(input.clone());
            ctx.set_output(0, Tensor::variant(Variant::new(wrapped)));
            Ok(())
        })
    });
    r.add("UnwrapDatasetVariant", |_| {
        Built::cheap(|ctx| {
            let input = ctx.input(0)?;
            if !input.shape().is_scalar() {
                return Err(not_scalar());
            }
            let variant = input.as_variants()?.first();
            let Some(Wrapped(inner)) = variant.and_then(Variant::downcast::<Wrapped>) else {
                return Err(Status::invalid_argument(
                    "Tensor must be a WrappedDataset variant object.",
                ));
            };
            let inner = inner.clone();
            ctx.set_output(0, inner);
            Ok(())
        })
    });
}

fn holds<V: VariantValue>(tensor: &Tensor) -> bool {
    let first = tensor.as_variants().ok().and_then(|v| v.first());
    first.and_then(Variant::downcast::<V>).is_some()
}

fn not_scalar() -> Status {
    Status::invalid_argument("Tensor must be a scalar of dtype DT_VARIANT.")
}

/// A dataset in a wrapper, so that nobody takes it for one.
#[derive(Debug)]
struct Wrapped(Tensor);

impl VariantValue for Wrapped {
    fn type_name(&self) -> &str {
        "tensorflow::WrappedDatasetVariantWrapper"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn to_tf_record() -> Result<Built> {
    Built::waiting(|op| {
        let ready = (|| {
            let dataset = Dataset::from_tensor(op.input(0)?)?.clone();
            let text = |i: usize, name: &str| {
                let tensor = op.input(i)?;
                let value = tensor.as_strings()?.first().filter(|_| tensor.rank() == 0);
                let value = value
                    .ok_or_else(|| Status::invalid_argument(format!("{name} must be a scalar")))?;
                Ok::<String, Status>(path(value)?.to_owned())
            };
            let spec = dataset.spec();
            match spec.types.as_slice() {
                [DType::String] => {}
                [other] => {
                    return Err(Status::invalid_argument(format!(
                        "ToTFRecordOp currently only supports DT_STRING dataypes, but got {other}"
                    )));
                }
                many => {
                    return Err(Status::invalid_argument(format!(
                        "ToTFRecordOp currently only support datasets of 1 single column, but got {}",
                        many.len()
                    )));
                }
            }
            Ok((
                dataset.clone(),
                text(1, "filename")?,
                text(2, "compression_type")?,
            ))
        })();
        let (dataset, file, compression) = match ready {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let device = op.env().device.clone();
        run_op(op, async move {
            let stream = storage(&device).create_stream(&file)?;
            let mut writer = RecordWriter::new(stream, Compression::from_option(&compression));
            let mut walk = dataset.start(&device, "ToTFRecordOpIterator")?;
            while let Some(element) = walk.next().await? {
                for tensor in &element {
                    for record in tensor.as_strings()? {
                        writer.write(record)?;
                    }
                }
            }
            writer.finish()?;
            Ok(vec![])
        });
    })
}
