//! Files with a graph in them, binary or text, whatever they are wrapped in.

use bytes::Bytes;
use downpour_formats::graph_file;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut seeds = downpour_fuzz::files("crates/wire/tests/fixtures", |n| n.ends_with(".pb"));
    let texts = [
        "node { name: \"a/w\" op: \"VariableV2\" attr { key: \"shape\" value { shape { dim { size: 3 } } } } }",
        "meta_info_def { tags: 'serve' } graph_def { node { name: 'a' op: 'NoOp' input: '^b' } versions { producer: 27 } }",
        "saved_model_schema_version: 1 meta_graphs < graph_def { library { function { signature { name: 'f' } } } } >",
    ];
    seeds.extend(texts.map(|t| t.as_bytes().to_vec()));
    downpour_fuzz::fuzz("graph_file", seeds, |input| {
        let Ok(file) = graph_file::parse(Bytes::copy_from_slice(input)) else {
            return;
        };
        assert!(!file.graphs.is_empty(), "a file of graphs holds one");
    })
}
