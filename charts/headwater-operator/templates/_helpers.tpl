{{- define "headwater-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "headwater-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- $name := include "headwater-operator.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headwater-operator.selector" -}}
app.kubernetes.io/name: {{ include "headwater-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headwater-operator.labels" -}}
{{ include "headwater-operator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: headwater
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "headwater-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "headwater-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "headwater-operator.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* What the operator may do with the objects it manages; used by both role kinds. */}}
{{- define "headwater-operator.rules" -}}
- apiGroups: [headwater.dev]
  resources: [streams]
  # patch adds and removes the finalizer; nothing here creates or deletes a Stream.
  verbs: [get, list, watch, patch]
- apiGroups: [headwater.dev]
  resources: [streamclusters]
  verbs: [get, list, watch]
- apiGroups: [headwater.dev]
  resources: [streams/status, streamclusters/status]
  verbs: [get, patch, update]
- apiGroups: [headwater.dev]
  resources: [streams/finalizers]
  verbs: [update]
- apiGroups: [events.k8s.io]
  resources: [events]
  # patch counts repeats of one event instead of adding another.
  verbs: [create, patch]
{{- with .Values.rbac.secretNames }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- end }}
