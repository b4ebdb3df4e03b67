{{/* Labels that select the pods of one component: dict "root" $ "component" "gateway". */}}
{{- define "tidewheel.selector" -}}
app.kubernetes.io/name: tidewheel
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tidewheel.labels" -}}
{{ include "tidewheel.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tidewheel
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "tidewheel.image" -}}
{{- $name := printf "tidewheel-%s:%s" .component .root.Values.image.tag -}}
{{- with .root.Values.image.registry }}{{ printf "%s/%s" . $name }}{{ else }}{{ $name }}{{ end -}}
{{- end }}

{{- define "tidewheel.defaultNamespace" -}}
{{- .Values.gateway.defaultNamespace | default (first .Values.servingNamespaces) -}}
{{- end }}

{{/* Every namespace in which something of ours reads the engine token. */}}
{{- define "tidewheel.tokenNamespaces" -}}
{{- prepend .Values.servingNamespaces .Release.Namespace | uniq | join "," -}}
{{- end }}

{{/* Satisfies the restricted Pod Security Standard. */}}
{{- define "tidewheel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tidewheel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Replicas on different nodes and zones where there are several; one node still runs them all. */}}
{{- define "tidewheel.spread" -}}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "tidewheel.selector" $ | nindent 6 }}
{{- end }}
{{- end }}

{{- define "tidewheel.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- /* Secret with the key that seals replies: the one that is named, or the one that is made beside an embedded Redis. */}}
{{- define "tidewheel.sealSecret" -}}
{{- .Values.redis.sealSecret | default (ternary "tidewheel-reply-seal" "" .Values.redis.embedded) -}}
{{- end }}
