//! The forward pass of BERT (Devlin et al. 2019, arXiv 1810.04805), as `transformers` computes it.
//!
//! `candle-transformers` has one too, among a hundred other models that would all be compiled with it. This
//! one also multiplies query, key and value in one step.

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, D, DType, Device, Error, InplaceOp1, Layout, Result, Tensor};
use candle_nn::{LayerNorm, Linear, Module as _, VarBuilder, layer_norm, linear, ops::softmax_last_dim};

use super::directory::{Activation, Shape};

/// Prefixes of an encoder's weights inside a model with a head.
const PREFIXES: [&str; 2] = ["bert", "roberta"];
/// Added to the attention scores of padding tokens.
const NO_ATTENTION: f32 = -1e9;

pub(crate) struct Bert {
    words: Tensor,
    /// By position, with the embedding of the only segment added.
    positions: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
    heads: usize,
}

struct Layer {
    query_key_value: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    up: Linear,
    activation: Activation,
    down: Linear,
    down_norm: LayerNorm,
}

impl Bert {
    /// Reads the weights from the bytes of a safetensors file.
    pub(crate) fn load(weights: &[u8], shape: &Shape) -> Result<Self> {
        let root = VarBuilder::from_slice_safetensors(weights, DType::F32, &Device::Cpu)?;
        let mut inside = PREFIXES.map(|prefix| root.pp(prefix)).into_iter();
        let root = inside.find(|at| at.contains_tensor("embeddings.word_embeddings.weight")).unwrap_or(root);
        let (hidden, norm) = (shape.hidden_size, |at| layer_norm(shape.hidden_size, shape.layer_norm_eps, at));
        let at = root.pp("embeddings");
        let positions = at.get((shape.max_position_embeddings, hidden), "position_embeddings.weight")?;
        let segments = at.get((shape.type_vocab_size, hidden), "token_type_embeddings.weight")?;
        let first = shape.first_position();
        let positions = positions.narrow(0, first, shape.max_position_embeddings - first)?;
        Ok(Self {
            words: at.get((shape.vocab_size, hidden), "word_embeddings.weight")?,
            positions: positions.broadcast_add(&segments.get(0)?)?,
            norm: norm(at.pp("LayerNorm"))?,
            layers: (0..shape.num_hidden_layers)
                .map(|index| Layer::load(&root.pp(format!("encoder.layer.{index}")), shape))
                .collect::<Result<_>>()?,
            heads: shape.num_attention_heads,
        })
    }

    /// Returns the last hidden state, (texts, longest, hidden). No text may be empty or exceed the model's positions.
    pub(crate) fn forward(&self, texts: &[&[u32]]) -> Result<Tensor> {
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or_default();
        let mut ids = vec![0_u32; texts.len() * longest];
        let mut mask = vec![NO_ATTENTION; ids.len()];
        for (row, text) in texts.iter().enumerate() {
            let start = row * longest;
            ids[start..start + text.len()].copy_from_slice(text);
            mask[start..start + text.len()].fill(0.0);
        }
        let is_padded = texts.iter().any(|text| text.len() < longest);
        let mask = Tensor::from_vec(mask, (texts.len(), 1, 1, longest), &Device::Cpu)?;
        let ids = Tensor::from_vec(ids, texts.len() * longest, &Device::Cpu)?;
        let words = self.words.index_select(&ids, 0)?.reshape((texts.len(), longest, ()))?;
        let embedded = words.broadcast_add(&self.positions.narrow(0, 0, longest)?)?;
        let mut state = self.norm.forward(&embedded)?;
        for layer in &self.layers {
            state = layer.forward(&state, self.heads, is_padded.then_some(&mask))?;
        }
        Ok(state)
    }
}

impl Layer {
    fn load(at: &VarBuilder<'_>, shape: &Shape) -> Result<Self> {
        let (hidden, between) = (shape.hidden_size, shape.intermediate_size);
        let norm = |at| layer_norm(hidden, shape.layer_norm_eps, at);
        let own = at.pp("attention.self");
        let part = |name: &str| linear(hidden, hidden, own.pp(name));
        #[expect(clippy::cast_precision_loss, reason = "the size of a head has far fewer than 2^52 numbers")]
        let scale = 1.0 / ((hidden / shape.num_attention_heads) as f64).sqrt();
        // Attention is divided by the root of the head's size: here once, in the weights.
        let query = part("query")?;
        let query = Linear::new((query.weight() * scale)?, query.bias().map(|bias| bias * scale).transpose()?);
        let parts = [query, part("key")?, part("value")?];
        let weights: Vec<_> = parts.iter().map(Linear::weight).collect();
        let biases: Vec<_> = parts.iter().filter_map(Linear::bias).collect();
        Ok(Self {
            query_key_value: Linear::new(Tensor::cat(&weights, 0)?, Some(Tensor::cat(&biases, 0)?)),
            attended: linear(hidden, hidden, at.pp("attention.output.dense"))?,
            attended_norm: norm(at.pp("attention.output.LayerNorm"))?,
            up: linear(hidden, between, at.pp("intermediate.dense"))?,
            activation: shape.hidden_act,
            down: linear(between, hidden, at.pp("output.dense"))?,
            down_norm: norm(at.pp("output.LayerNorm"))?,
        })
    }

    fn forward(&self, state: &Tensor, heads: usize, mask: Option<&Tensor>) -> Result<Tensor> {
        let (texts, length, hidden) = state.dims3()?;
        let parts = self.query_key_value.forward(state)?.reshape((texts, length, 3, heads, hidden / heads))?;
        let parts = parts.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let (query, key, value) = (parts.get(0)?, parts.get(1)?, parts.get(2)?);
        let attention = query.matmul(&key.t()?)?;
        let attention = match mask {
            Some(mask) => attention.broadcast_add(mask)?,
            None => attention,
        };
        let attended = softmax_last_dim(&attention)?.matmul(&value)?;
        let attended = attended.transpose(1, 2)?.contiguous()?.flatten_from(D::Minus2)?;
        let state = self.attended_norm.forward(&(self.attended.forward(&attended)? + state)?)?;
        let between = self.up.forward(&state)?;
        let between = match self.activation {
            Activation::Gelu => between.inplace_op1(&Gelu).map(|()| between)?,
            Activation::GeluNew => between.gelu()?,
            Activation::Relu => between.relu()?,
        };
        self.down_norm.forward(&(self.down.forward(&between)? + state)?)
    }
}

/// `erf(x) = x P(x²) / Q(x²)` on [-4, 4], beyond which it is ±1 in single precision: the approximation of Eigen
/// and XLA, off by 5e-7 at most.
const P: [f32; 7] =
    [-2.726_142_4e-10, 2.770_681_5e-8, -2.101_024e-6, -5.692_506_2e-5, -7.349_906_4e-4, -2.954_6e-3, -1.609_603_3e-2];
const Q: [f32; 5] = [-1.456_607_15e-5, -2.133_740_5e-4, -1.682_827e-3, -7.373_329_3e-3, -1.426_473_9e-2];

/// Replaces numbers by their GELU.
pub(crate) struct Gelu;

impl InplaceOp1 for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (start, end) = layout.contiguous_offsets().ok_or(Error::RequiresContiguous { op: self.name() })?;
        let CpuStorage::F32(numbers) = storage else {
            return Err(Error::UnsupportedDTypeForOp(storage.dtype(), self.name()));
        };
        numbers[start..end].iter_mut().for_each(|number| *number = gelu(*number));
        Ok(())
    }
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

fn erf(x: f32) -> f32 {
    let x = x.clamp(-4.0, 4.0);
    let square = x * x;
    let polynomial = |factors: &[f32]| factors.iter().fold(0.0, |sum, factor| sum * square + factor);
    x * polynomial(&P) / polynomial(&Q)
}

#[cfg(test)]
mod gelu_tests {
    use super::*;
    use candle_core::{Device, Tensor};

    #[test]
    fn gelu_matches_candle_exactly() {
        let numbers = Tensor::arange(-12.0_f32, 12.0, &Device::Cpu).unwrap();
        let fine = (Tensor::arange(-9.0_f32, 9.0, &Device::Cpu).unwrap() * 0.137).unwrap();
        for tensor in [numbers, fine, Tensor::new(&[0.0, -0.0, 1e-30, 1e30, -1e30], &Device::Cpu).unwrap()] {
            let tensor = tensor.to_dtype(candle_core::DType::F32).unwrap();
            let expect = tensor.gelu_erf().unwrap().to_vec1::<f32>().unwrap();
            tensor.inplace_op1(&Gelu).unwrap();
            for (got, expect) in tensor.to_vec1::<f32>().unwrap().into_iter().zip(expect) {
                assert!((got - expect).abs() <= 5e-7 * expect.abs().max(1.0), "{got} {expect}");
            }
        }
        assert!(gelu(f32::NAN).is_nan());
    }
}
