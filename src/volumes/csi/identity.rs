//! Identity service.

use std::collections::HashMap;

use tonic::{Request, Response, Status};

use super::NAME;
use super::proto::identity_server::Identity;
use super::proto::plugin_capability::service::Type as ServiceType;
use super::proto::plugin_capability::volume_expansion::Type as ExpansionType;
use super::proto::plugin_capability::{Service as ServiceOf, Type, VolumeExpansion};
use super::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use super::serve::Service;

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let (name, vendor_version) = (NAME.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Ok(Response::new(GetPluginInfoResponse {
            name,
            vendor_version,
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let services = [
            ServiceType::ControllerService,
            ServiceType::VolumeAccessibilityConstraints,
        ];
        let services = services
            .into_iter()
            .map(|one| Type::Service(ServiceOf { r#type: one.into() }));
        let expansion = Type::VolumeExpansion(VolumeExpansion {
            r#type: ExpansionType::Online.into(),
        });
        let capabilities = services
            .chain([expansion])
            .map(|one| PluginCapability { r#type: Some(one) })
            .collect();
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities,
        }))
    }

    async fn probe(
        &self,
        request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        self.work("Probe", request, |driver, _| {
            let ready = driver.pool.registry().root().join("meta").is_dir();
            if ready {
                Ok(ProbeResponse { ready: Some(true) })
            } else {
                Err(Status::failed_precondition("the pool is gone"))
            }
        })
        .await
    }
}
