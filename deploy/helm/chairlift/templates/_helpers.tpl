{{- define "chairlift.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* The image of the replicas. A tag or digest of `image` belongs to its repository, and goes when either is another one. */}}
{{- define "chairlift.replicaImage" -}}
{{- $own := .Values.replica.image -}}
{{- if or $own.repository $own.tag $own.digest -}}
{{ $own.repository | default .Values.image.repository }}{{ with $own.digest }}@{{ . }}{{ else }}:{{ $own.tag | default .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- else -}}
{{ include "chairlift.image" . }}
{{- end -}}
{{- end -}}

{{/* The labels by which pods of a part are selected. `app` is the job of the alert rules. Call it with a list: root, part. */}}
{{- define "chairlift.selector" -}}
{{- $root := index . 0 -}}
app: chairlift-{{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- end -}}

{{- define "chairlift.claim" -}}
{{ .Values.models.existingClaim | default (printf "%s-models" .Release.Name) }}
{{- end -}}

{{- define "chairlift.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end -}}

{{- define "chairlift.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "chairlift.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "chairlift.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
