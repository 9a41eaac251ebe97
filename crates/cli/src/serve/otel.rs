//! Sends spans to a collector by OTLP over HTTP. The exporter reads the usual variables of OpenTelemetry; without
//! `OTEL_EXPORTER_OTLP_ENDPOINT` nothing is sent.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

use crate::settings::Environment;

/// Sends the spans from a thread of its own. Dropping it sends the remaining ones.
pub(super) struct Exporter(SdkTracerProvider);

impl Drop for Exporter {
    fn drop(&mut self) {
        // The collector may be gone by now, and then the spans are lost.
        let _ = self.0.shutdown();
    }
}

/// A layer for the log that sends its spans, if an endpoint is set.
pub(super) fn export<S>(environment: Environment<'_>) -> Option<(OpenTelemetryLayer<S, Tracer>, Exporter)>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    environment("OTEL_EXPORTER_OTLP_ENDPOINT")?;
    let exporter = SpanExporter::builder().with_http().build().ok()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("belljar").build())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("belljar"));
    Some((layer, Exporter(provider)))
}
