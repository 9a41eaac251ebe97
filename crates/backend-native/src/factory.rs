//! Makes boxes: their keeper, their cgroup, their plan, and the template that they are built on.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use belljar_core::backend::{BackendError, ExecutionSpec, SandboxSpec};
use belljar_core::guarantee::{Offer, resolve};
use belljar_core::language::Language;
use belljar_core::limits::{BoxLimits, LimitsRequest};
use belljar_core::path::BoxPath;
use belljar_host::runtimes::Runtime;
use belljar_jail::Standby;
use belljar_jail::plan::{CgroupEntry, Identity};

use crate::cgroup::{BoxCgroup, BoxName, Cgroups};
use crate::errors::setup;
use crate::host::Host;
use crate::ids;
use crate::keeper::Keeper;
use crate::layout::{self, BaseSystem, Draft, Ground, Supply};
use crate::network::NetworkSettings;
use crate::templates::Templates;
use crate::warden::Warden;

/// What this host makes boxes with.
#[derive(Debug)]
pub(crate) struct BoxFactory {
    pub(crate) host: Host,
    pub(crate) offer: Offer,
    standby: Mutex<Option<Standby>>,
    /// Forks keepers, if there will be many.
    warden: Option<Warden>,
    /// What many boxes have in common.
    templates: Templates,
    /// What all boxes with a network have in common.
    pub(crate) network: NetworkSettings,
}

impl BoxFactory {
    /// `standby` is a PID 1 for the first box, if there is one already.
    pub(crate) fn new(
        host: Host,
        standby: Option<Standby>,
        many_boxes: bool,
        network: NetworkSettings,
    ) -> BoxFactory {
        // On cgroup v2, PID 1 must be cloned into its cgroup, so an existing one is of no use.
        let standby = standby.filter(|_| !matches!(host.cgroups, Cgroups::V2(_)));
        let (offer, standby, warden) = (host.offer(), Mutex::new(standby), many_boxes.then(Warden::default));
        BoxFactory { host, offer, standby, warden, templates: Templates::new(), network }
    }

    pub(crate) fn has_standby(&self) -> bool {
        self.standby.lock().is_ok_and(|standby| standby.is_some())
    }

    pub(crate) fn keeper(&self) -> Result<Keeper, BackendError> {
        let standby = self.standby.lock().ok().and_then(|mut standby| standby.take());
        let started = match (standby, &self.warden) {
            (Some(standby), _) => Ok(Keeper::None(Box::new(standby))),
            (None, Some(warden)) => warden.hire().map(Keeper::Process),
            (None, None) => Keeper::start(),
        };
        started.map_err(setup("start the keeper"))
    }

    /// Makes the cgroup now, unless it can be made later while the box is built.
    pub(crate) fn cgroup(
        &self,
        keeper: &Keeper,
        limits: &BoxLimits,
    ) -> Result<Option<BoxCgroup>, BackendError> {
        if let Cgroups::Unavailable { .. } = self.host.cgroups {
            return Ok(None);
        }
        let name = BoxName::next().map_err(setup("name the box"))?;
        let made = if keeper.waits_for_cgroup() {
            self.host.cgroups.design(&name)
        } else {
            self.host.cgroups.create(&name, limits)
        };
        made.map(Some).map_err(|error| setup("make the box's cgroup")(io::Error::other(error)))
    }

    pub(crate) fn draft(
        &self,
        sandbox: &SandboxSpec,
        execution: &ExecutionSpec,
        runtime: &Runtime,
        supply: Supply,
        keeper: u32,
        cgroup: Option<&BoxCgroup>,
    ) -> Result<Draft, BackendError> {
        let ground = self.ground(
            runtime,
            ids::identity(self.host.opener, keeper),
            cgroup.map_or(CgroupEntry::None, BoxCgroup::entry),
            cgroup.map(BoxCgroup::orphans).unwrap_or_default(),
            BaseSystem::look(),
        );
        layout::draft(sandbox, execution, supply, ground)
    }

    pub(crate) fn ground<'a>(
        &self,
        runtime: &'a Runtime,
        identity: Identity,
        cgroup: CgroupEntry,
        orphans: Vec<PathBuf>,
        base: Arc<BaseSystem>,
    ) -> Ground<'a> {
        let landlock = self.host.landlock > 0;
        Ground { runtime, identity, opener: self.host.opener, cgroup, orphans, landlock, base }
    }

    /// Has the box built on a template, if there is one for it.
    pub(crate) async fn find_template(&self, draft: &mut Draft) {
        let Some(warden) = &self.warden else { return };
        if let Some(template) = self.templates.suiting(&draft.plan, warden).await {
            draft.build_on(template);
        }
    }

    /// The request that most requests of a language resemble: one that leaves out everything optional.
    pub(crate) fn usual_request(
        &self,
        language: Language,
        limits: BoxLimits,
    ) -> Result<(SandboxSpec, ExecutionSpec), BackendError> {
        let cannot = |why: &'static str| setup("park a box")(io::Error::other(why));
        let enforcement =
            resolve(&self.offer, &[]).map_err(|_| cannot("this host cannot enforce every guarantee"))?;
        let (_, execution_limits) =
            LimitsRequest::default().resolve().map_err(|_| cannot("the default limits are out of range"))?;
        let parking = language.parking.ok_or_else(|| cannot("its runtime cannot be parked"))?;
        let name = BoxPath::parse(parking.source).map_err(|_| cannot("its source file has no valid name"))?;
        let sandbox = SandboxSpec::unspecific(limits, enforcement);
        Ok((sandbox, ExecutionSpec::unspecific(language, name, execution_limits)))
    }
}
