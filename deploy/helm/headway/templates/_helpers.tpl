{{- define "headway.selector" -}}
app.kubernetes.io/name: headway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headway.labels" -}}
{{ include "headway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "headway.name" -}}
{{ printf "%s-inference" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* This release's series, as a PodMonitor and the usual scrape of annotated pods label them. */}}
{{- define "headway.series" -}}
namespace="{{ .Release.Namespace }}",app_kubernetes_io_instance="{{ .Release.Name }}"
{{- end }}
