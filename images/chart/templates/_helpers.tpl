{{/* The release's name, or the chart's in it: as charts made by "helm create" name their objects. */}}
{{- define "gpuadm.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuadm.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "gpuadm.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gpuadm.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
The name of what lies in no namespace, or in the namespace default. Releases of one name in two namespaces get two names: no namespace has
a dot in it.
*/}}
{{- define "gpuadm.clusterName" -}}
{{- if eq (include "gpuadm.fullname" .) .Release.Namespace -}}
{{- include "gpuadm.fullname" . -}}
{{- else -}}
{{- printf "%s.%s" .Release.Namespace (include "gpuadm.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "gpuadm.selector" -}}
{app.kubernetes.io/name: {{ include "gpuadm.name" . | toYaml }}, app.kubernetes.io/instance: {{ toYaml .Release.Name }}}
{{- end -}}

{{/*
The data of the ConfigMap, with each byte of node.toml. A YAML block shows most texts as they are. What a block changes goes as base64: a
carriage return, a line of blanks, a first line that is empty or indented, more or no line feed at the end, a character that YAML forbids.
*/}}
{{- define "gpuadm.spec" -}}
{{- $text := .Values.nodeToml -}}
{{- $plain := regexMatch "\\A[!-~]" $text -}}
{{- $plain = and $plain (regexMatch "[^\\n]\\n\\z" $text) -}}
{{- $plain = and $plain (not (regexMatch "(?m)^[ \\t]+$" $text)) -}}
{{- $plain = and $plain (not (regexMatch "[^\\n\\t -~\\x{a1}-\\x{1fff}\\x{2030}-\\x{205e}\\x{2070}-\\x{d7ff}]" $text)) -}}
{{- if $plain -}}
data:
  node.toml: |
{{ regexReplaceAll "(?m)^ +$" (trimSuffix "\n" $text | indent 4) "" }}
{{- else -}}
binaryData:
  node.toml: {{ b64enc $text }}
{{- end -}}
{{- end -}}
