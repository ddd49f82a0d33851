//! Ops that TensorFlow has removed, with the graph version that did it and what it says instead. A session's
//! first graph may still hold them, of any version, and then mostly lacks their kernels; what is added to
//! it later may not.

use crate::status::{Result, Status};

/// Name, first version of a graph without the op, what to use.
#[rustfmt::skip]
const REMOVED: &[(&str, i32, &str)] = &[
    ("AdjustContrast", 2, "Use AdjustContrastv2 instead"),
    ("AudioSummary", 15, "Use AudioSummaryV2."),
    ("BatchCholesky", 13, "Use Cholesky instead."),
    ("BatchCholeskyGrad", 13, "Use CholeskyGrad instead."),
    ("BatchFFT", 15, "Use FFT"),
    ("BatchFFT2D", 15, "Use FFT2D"),
    ("BatchFFT3D", 15, "Use FFT3D"),
    ("BatchIFFT", 15, "Use IFFT"),
    ("BatchIFFT2D", 15, "Use IFFT2D"),
    ("BatchIFFT3D", 15, "Use IFFT3D"),
    ("BatchMatrixBandPart", 14, "Use MatrixBandPart"),
    ("BatchMatrixDeterminant", 13, "Use MatrixDeterminant instead."),
    ("BatchMatrixDiag", 14, "Use MatrixDiag"),
    ("BatchMatrixDiagPart", 14, "Use MatrixDiagPart"),
    ("BatchMatrixInverse", 13, "Use MatrixInverse instead."),
    ("BatchMatrixSetDiag", 14, "Use MatrixSetDiag"),
    ("BatchMatrixSolve", 13, "Use MatrixSolve instead."),
    ("BatchMatrixSolveLs", 13, "Use MatrixSolveLs instead."),
    ("BatchMatrixTriangularSolve", 13, "Use MatrixTriangularSolve instead."),
    ("BatchNormWithGlobalNormalization", 9, "Use tf.nn.batch_normalization()"),
    ("BatchNormWithGlobalNormalizationGrad", 9, "Use tf.nn.batch_normalization()"),
    ("BatchSelfAdjointEig", 11, "Use SelfAdjointEigV2 instead."),
    ("BatchSelfAdjointEigV2", 13, "Use SelfAdjointEigV2 instead."),
    ("BatchSvd", 13, "Use Svd instead."),
    ("Conv3DBackpropFilter", 10, "Use Conv3DBackpropFilterV2"),
    ("Conv3DBackpropInput", 10, "Use Conv3DBackpropInputV2"),
    ("FixedLengthRecordReader", 26, "Use FixedLengthRecordReaderV2"),
    ("IdentityReader", 26, "Use IdentityReaderV2"),
    ("MatrixExponential", 27, "Use Python implementation tf.linalg.matrix_exponential instead."),
    ("NegTrain", 19, "Moving word2vec into tensorflow_models/tutorials and deprecating its ops here as a result"),
    ("Old", 8, "For reasons"),
    ("PlaceholderV2", 23, "Placeholder now behaves the same as PlaceholderV2."),
    ("QuantizeAndDequantize", 22, "Replaced by QuantizeAndDequantizeV2"),
    ("RandomCrop", 8, "Random crop is now pure Python"),
    ("RandomPoisson", 25, "Replaced by RandomPoissonV2"),
    ("SelfAdjointEig", 11, "Use SelfAdjointEigV2 instead."),
    ("Skipgram", 19, "Moving word2vec into tensorflow_models/tutorials and deprecating its ops here as a result"),
    ("StatefulStandardNormal", 29, "Use StatefulStandardNormalV2 instead"),
    ("TFRecordReader", 26, "Use TFRecordReaderV2"),
    ("TensorArray", 16, "Use TensorArrayV3"),
    ("TensorArrayClose", 16, "Use TensorArrayCloseV3"),
    ("TensorArrayCloseV2", 26, "Use TensorArrayCloseV3"),
    ("TensorArrayConcat", 16, "Use TensorArrayGradV3"),
    ("TensorArrayGather", 16, "Use TensorArrayGatherV3"),
    ("TensorArrayGatherV2", 26, "Use TensorArrayGatherV3"),
    ("TensorArrayGrad", 16, "Use TensorArrayGradV3"),
    ("TensorArrayGradV2", 26, "Use TensorArrayGradV3"),
    ("TensorArrayPack", 16, "Use TensorArrayGatherV3 with RangeOp"),
    ("TensorArrayRead", 16, "Use TensorArrayReadV3"),
    ("TensorArrayReadV2", 26, "Use TensorArrayReadV3"),
    ("TensorArrayScatter", 19, "Use TensorArrayGradV3"),
    ("TensorArrayScatterV2", 26, "Use TensorArrayScatterV3"),
    ("TensorArraySize", 16, "Use TensorArraySizeV3"),
    ("TensorArraySizeV2", 26, "Use TensorArraySizeV3"),
    ("TensorArraySplit", 16, "Use TensorArraySplitV3"),
    ("TensorArraySplitV2", 26, "Use TensorArraySplitV3"),
    ("TensorArrayUnpack", 20, "Use TensorArrayScatterV3 with RangeOp"),
    ("TensorArrayV2", 26, "Use TensorArrayV3"),
    ("TensorArrayWrite", 16, "Use TensorArrayWriteV3"),
    ("TensorArrayWriteV2", 26, "Use TensorArrayWriteV3"),
    ("TextLineReader", 26, "Use TextLineReaderV2"),
    ("TileGrad", 3, "TileGrad has been replaced with reduce_sum"),
    ("TopK", 7, "Use TopKV2 instead"),
];

/// Refuses an op that graphs of version `producer` do not have any more.
pub(crate) fn check(op: &str, producer: i32) -> Result<()> {
    let Ok(i) = REMOVED.binary_search_by_key(&op, |row| row.0) else {
        return Ok(());
    };
    let (_, version, instead) = REMOVED[i];
    if producer < version {
        return Ok(());
    }
    Err(Status::unimplemented(format!(
        "Op {op} is not available in GraphDef version {producer}. It has been removed in version {version}. {instead}."
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_begins_with_a_version() {
        assert!(REMOVED.is_sorted_by_key(|row| row.0));
        assert!(check("BatchFFT", 14).is_ok() && check("FFT", 2474).is_ok());
        assert_eq!(
            check("BatchFFT", 15).unwrap_err().message,
            "Op BatchFFT is not available in GraphDef version 15. It has been removed in version 15. Use FFT."
        );
    }
}
