//! What runs a model: the CPU or, in a build with the feature `cuda`, an NVIDIA GPU.

use std::sync::Arc;

use minfer_cpu::CpuDevice;
#[cfg(feature = "cuda")]
use minfer_cuda::{CudaDevice, CudaOptions};
use minfer_engine::executor::{Executor, Limits, StepError, StepId, StepOutput, StepPlan};
use minfer_gguf::Gguf;
use minfer_model::{DecoderSpec, LoadOptions, MemoryPlan, Model};
use minfer_ops::{Device as _, DeviceError};

use crate::{Error, Options};

/// Which device is to run a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU that this build can use, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU.
    Cuda {
        /// Its number.
        gpu: usize,
        /// Its numerics profile; that of its kind if left out, `minfer_cuda::Numerics::of`.
        numerics: Option<GpuNumerics>,
        /// What takes prompts in the int8 profile.
        #[cfg(feature = "cuda")]
        prefill: minfer_cuda::Prefill,
    },
}

/// A numerics profile of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuNumerics {
    /// Inputs of products in half precision.
    F16,
    /// Inputs of products as bytes under a scale for every 256 values (K-quants, IQ4_XS) or 32 (other types).
    Int8,
}

/// A model on one of the devices.
#[allow(clippy::large_enum_variant, reason = "one of it per process")]
pub enum AnyModel {
    /// On the CPU.
    Cpu(Model<CpuDevice>),
    /// On an NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(Model<CudaDevice>),
}

/// A loaded model, for who drives it without an engine.
pub struct Loaded {
    /// The model: an [`Executor`].
    pub model: AnyModel,
    /// Whether its weights were rearranged in memory.
    pub repacked: bool,
}

/// Runs an expression on the model inside.
macro_rules! each {
    ($any:expr, $model:ident => $what:expr) => {
        match $any {
            AnyModel::Cpu($model) => $what,
            #[cfg(feature = "cuda")]
            AnyModel::Cuda($model) => $what,
        }
    };
}

impl AnyModel {
    /// What the model is.
    pub fn spec(&self) -> &DecoderSpec {
        each!(self, model => model.spec())
    }

    /// The device, for people.
    pub fn describe(&self) -> String {
        each!(self, model => model.device().describe())
    }

    /// What the layout and the bits of its cache depend on, besides the model and the cache's types.
    pub fn cache_kind(&self) -> String {
        each!(self, model => model.device().cache_kind())
    }

    /// The CPU, if it runs there.
    pub fn cpu(&self) -> Option<&CpuDevice> {
        match self {
            AnyModel::Cpu(model) => Some(model.device()),
            #[cfg(feature = "cuda")]
            AnyModel::Cuda(_) => None,
        }
    }
}

impl Executor for AnyModel {
    fn limits(&self) -> &Limits {
        each!(self, model => model.limits())
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<StepId, StepError> {
        each!(self, model => model.submit(plan))
    }

    fn wait(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), StepError> {
        each!(self, model => model.wait(step, out))
    }

    fn block_bytes(&self) -> Option<Vec<usize>> {
        each!(self, model => model.block_bytes())
    }

    fn read_block(&mut self, group: usize, block: u32, bytes: &mut [u8]) -> Result<(), StepError> {
        each!(self, model => model.read_block(group, block, bytes))
    }

    fn write_block(&mut self, group: usize, block: u32, bytes: &[u8]) -> Result<(), StepError> {
        each!(self, model => model.write_block(group, block, bytes))
    }

    fn give_up(&mut self, step: StepId) -> bool {
        each!(self, model => model.give_up(step))
    }
}

/// Why a GPU cannot be used, in one line; `None` if it can.
pub fn gpu_unavailable() -> Option<String> {
    #[cfg(feature = "cuda")]
    return match minfer_cuda::gpus() {
        Ok(gpus) if gpus.is_empty() => Some("the driver sees no GPU".to_owned()),
        Ok(gpus) => {
            let usable = gpus.iter().any(|gpu| gpu.unusable.is_none());
            let why = gpus.into_iter().next().and_then(|gpu| gpu.unusable);
            why.filter(|_| !usable).map(|why| why.to_string())
        }
        Err(why) => Some(why.to_string()),
    };
    #[cfg(not(feature = "cuda"))]
    Some(
        "this build has no GPU support; `cargo build --release --features cuda` makes one that has"
            .to_owned(),
    )
}

/// Why a file's model does not run on a GPU, if it is its kind. What else is wrong with it loading will tell.
#[cfg(feature = "cuda")]
fn encoder(gguf: &Gguf) -> Option<&'static str> {
    let encoder = DecoderSpec::from_gguf(gguf).is_ok_and(|spec| spec.bidirectional());
    encoder.then_some("the model is an encoder, and encoders run on the CPU only")
}

/// What a model would need on a GPU.
pub struct GpuPlan {
    /// The GPU.
    pub name: String,
    /// Bytes free there.
    pub free: u64,
    /// What is needed.
    pub plan: MemoryPlan,
}

/// The plan for the first GPU; `None` if this build can use none.
///
/// # Errors
///
/// [`Error::Model`] if it could not run there, [`Error::Gpu`] if the GPU fails.
pub fn plan_on_gpu(gguf: &Arc<Gguf>, options: &LoadOptions) -> Option<Result<GpuPlan, Error>> {
    if gpu_unavailable().is_some() {
        return None;
    }
    #[cfg(feature = "cuda")]
    return Some((|| {
        if let Some(why) = encoder(gguf) {
            return Err(Error::Gpu(why.to_owned()));
        }
        let device = CudaDevice::new(&CudaOptions::default()).map_err(|why| Error::Gpu(why.to_string()))?;
        let free = device.free_memory().map_err(minfer_model::Error::from)?;
        let plan = minfer_model::plan_memory(gguf, &device, options)?;
        Ok(GpuPlan { name: device.info().name.clone(), free, plan })
    })());
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (gguf, options);
        None
    }
}

/// Loads a model onto the device that the options ask for. `progress` hears the bytes of weights done, and of all.
///
/// # Errors
///
/// [`Error::Model`]; [`Error::Gpu`] if a GPU was asked for and there is none.
pub fn load_model(
    gguf: &Arc<Gguf>,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Loaded, Error> {
    load_models(gguf, None, options, progress).map(|(loaded, _)| loaded)
}

/// Loads a model, and one that drafts for it, onto the same device. Both have to fit before either is loaded.
pub(crate) fn load_models(
    gguf: &Arc<Gguf>,
    draft: Option<&Arc<Gguf>>,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Loaded, Option<AnyModel>), Error> {
    match options.device {
        DeviceChoice::Cpu => {}
        DeviceChoice::Auto => {
            let why = gpu_unavailable();
            #[cfg(feature = "cuda")]
            let why = why.or_else(|| encoder(gguf).map(str::to_owned));
            #[cfg(feature = "cuda")]
            if why.is_none() {
                return load_cuda(gguf, draft, &CudaOptions::default(), options, progress);
            }
            tracing::info!("the CPU runs the model: {}", why.unwrap_or_default());
        }
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda { gpu, numerics, prefill } => {
            let numerics = numerics.map(|numerics| match numerics {
                GpuNumerics::F16 => minfer_cuda::Numerics::F16,
                GpuNumerics::Int8 => minfer_cuda::Numerics::Int8,
            });
            let cuda = CudaOptions { gpu, numerics, prefill };
            return load_cuda(gguf, draft, &cuda, options, progress);
        }
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda { .. } => return Err(Error::Gpu(gpu_unavailable().unwrap_or_default())),
    }
    let bytes = weight_bytes(gguf) + draft.map_or(0, |draft| weight_bytes(draft));
    let device = || {
        let mut device = CpuDevice::new(&options.cpu).map_err(|error| match error {
            // What was asked for, and not what happened on the way.
            DeviceError::Fault(what) => Error::Cpu(what),
            error => minfer_model::Error::from(error).into(),
        })?;
        let repacked = device.settle_repack(bytes);
        Ok::<_, Error>((device, repacked))
    };
    let (own, repacked) = device()?;
    if !repacked && options.cpu.repack == minfer_cpu::Repack::Auto {
        tracing::warn!("memory is short: weights stay in the file's layout (--repack off), which is slower");
    }
    let draft = draft.map(|draft| Ok::<_, Error>((draft, device()?.0))).transpose()?;
    let (model, draft) = load_on((gguf, own), draft, &options.load, progress)?;
    Ok((Loaded { model: AnyModel::Cpu(model), repacked }, draft.map(AnyModel::Cpu)))
}

fn weight_bytes(gguf: &Gguf) -> u64 {
    gguf.tensors().map(|t| t.data().len() as u64).sum()
}

/// Loads a model onto its device, and one that drafts for it onto another handle of the same one.
fn load_on<D: minfer_ops::Device>(
    (gguf, device): (&Arc<Gguf>, D),
    draft: Option<(&Arc<Gguf>, D)>,
    load: &LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Model<D>, Option<Model<D>>), Error> {
    let Some((draft, draft_device)) = draft else {
        return Ok((Model::load(gguf, device, load, progress)?, None));
    };
    // Where the draft's context ends nothing is guessed.
    let context = DecoderSpec::from_gguf(draft)?.context;
    let draft_load = LoadOptions { context: load.context.map(|asked| asked.min(context)), ..load.clone() };
    let needed = minfer_model::plan_memory(gguf, &device, load)?.total();
    let draft_needed = minfer_model::plan_memory(draft, &draft_device, &draft_load)?.total();
    let free = device.free_bytes().map_err(minfer_model::Error::from)?;
    if let Some(free) = free.filter(|free| needed.saturating_add(draft_needed) > *free) {
        return Err(Error::DraftMemory { needed, draft: draft_needed, free });
    }
    let (own, all) = (weight_bytes(gguf), weight_bytes(gguf) + weight_bytes(draft));
    let model = Model::load(gguf, device, load, &mut |done, _| progress(done, all))?;
    let draft = Model::load(draft, draft_device, &draft_load, &mut |done, _| progress(own + done, all))?;
    Ok((model, Some(draft)))
}

#[cfg(feature = "cuda")]
fn load_cuda(
    gguf: &Arc<Gguf>,
    draft: Option<&Arc<Gguf>>,
    cuda: &CudaOptions,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Loaded, Option<AnyModel>), Error> {
    let device = || CudaDevice::new(cuda).map_err(|why| Error::Gpu(why.to_string()));
    let own = device()?;
    let free = own.free_memory().map_err(minfer_model::Error::from)?;
    let planned = minfer_model::plan_memory(gguf, &own, &options.load)?.total();
    let draft = draft.map(|draft| Ok::<_, Error>((draft, device()?))).transpose()?;
    let (model, draft) = load_on((gguf, own), draft, &options.load, progress)?;
    let taken = free.saturating_sub(model.device().free_memory().map_err(minfer_model::Error::from)?);
    tracing::info!(free, planned, taken, "bytes of the GPU's memory");
    Ok((Loaded { model: AnyModel::Cuda(model), repacked: false }, draft.map(AnyModel::Cuda)))
}
