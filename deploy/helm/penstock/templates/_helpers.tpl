{{/* The services in the order of the chart. */}}
{{- define "penstock.services" -}}
{{- if eq .Values.mode "allInOne" -}}all-in-one{{- else -}}connector normalizer edge approvals automations workflows console{{- end -}}
{{- end }}

{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "penstock.name" .) .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name (include "penstock.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ include "penstock.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.podLabels" . }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Without the chart's version: a new chart with the same pods must not replace them. */}}
{{- define "penstock.podLabels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The values of one service over the defaults, as YAML. Takes (dict "root" $ "name" "edge"). */}}
{{- define "penstock.service" -}}
{{- $own := deepCopy (get .root.Values .name | default dict) -}}
{{- $all := mergeOverwrite (deepCopy .root.Values.defaults) $own -}}
{{- if eq .name "all-in-one" -}}
{{- $all = mergeOverwrite (deepCopy .root.Values.defaults) (omit (deepCopy .root.Values.edge) "replicas") (dict "replicas" 1) -}}
{{- end -}}
{{- if and (hasKey $all "maxConnectionAgeSeconds") (eq (int $all.drainSeconds) 0) -}}
{{- $_ := set $all "drainSeconds" (int $all.maxConnectionAgeSeconds) -}}
{{- end -}}
{{- $needed := add (int $all.preStopSeconds) (int $all.drainSeconds) 30 | int -}}
{{- if eq (int $all.terminationGracePeriodSeconds) 0 -}}
{{- $_ := set $all "terminationGracePeriodSeconds" $needed -}}
{{- end -}}
{{- toYaml $all -}}
{{- end }}

{{/* The image of a target. Takes (dict "root" $ "target" "edge" "image" ""). */}}
{{- define "penstock.image" -}}
{{- $image := .root.Values.image -}}
{{- $name := $image.repository -}}
{{- if ne .target "penstock" }}{{ $name = printf "%s-%s" $name .target }}{{ end -}}
{{- if $image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $image.registry) $name }}{{ end -}}
{{- $digest := get $image.digests .target -}}
{{- if .image }}{{ .image }}
{{- else if $digest }}{{ $name }}@{{ $digest }}
{{- else }}{{ $name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "penstock.containerSecurity" -}}
{{- toYaml .Values.containerSecurityContext }}
{{- end }}

{{- define "penstock.podSecurity" -}}
{{- toYaml .Values.podSecurityContext }}
{{- end }}

{{/* The account of a pod. */}}
{{- define "penstock.account" -}}
{{- $account := .Values.serviceAccount -}}
automountServiceAccountToken: false
{{- if or $account.create $account.name }}
serviceAccountName: {{ $account.name | default (include "penstock.fullname" .) }}
{{- end }}
{{- end }}

{{/* Where a pod may run. Takes the values of a service, or `defaults`. */}}
{{- define "penstock.placement" -}}
{{- range $key := list "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with get $ $key }}
{{ toYaml (dict $key .) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A variable of the environment. Takes (list NAME VALUE); the value may be an object. */}}
{{- define "penstock.variable" -}}
{{- $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- toYaml (list (mergeOverwrite (dict "name" (index . 0)) $value)) }}
{{- else -}}
- {name: {{ index . 0 }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "penstock.probes" -}}
startup:
  httpGet: {path: /livez, port: probes}
  periodSeconds: 2
  failureThreshold: 60
liveness:
  httpGet: {path: /livez, port: probes}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readiness:
  httpGet: {path: /readyz, port: probes}
  periodSeconds: 3
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* For how long what is stored is kept, as PENSTOCK_KEEP. Takes the section `streams`. */}}
{{- define "penstock.keep" -}}
{{- $words := list }}
{{- range $kind, $age := .keep }}{{ $words = append $words (printf "%s=%s" $kind $age) }}{{ end }}
{{- join "," (concat $words .keepRuns) }}
{{- end }}

{{/* The seconds of an age such as 7d; 0 for `forever`. */}}
{{- define "penstock.seconds" -}}
{{- $units := dict "s" 1 "m" 60 "h" 3600 "d" 86400 }}
{{- if eq . "forever" }}0{{ else }}{{ mul (regexFind "^[0-9]+" . | int64) (get $units (regexFind "[smhd]$" .)) }}{{ end }}
{{- end }}

{{/* The environment of a NATS user. Takes (dict "root" $ "user" "edge"). */}}
{{- define "penstock.natsEnv" -}}
- {name: PENSTOCK_NATS_URL, value: {{ .root.Values.nats.url | quote }}}
{{- if .root.Values.nats.existingSecret }}
- {name: PENSTOCK_NATS_PASSWORDS, value: /etc/penstock-nats}
{{- end }}
{{- if .root.Values.nats.tls.existingSecret }}
- {name: PENSTOCK_NATS_TLS_CA, value: /etc/penstock-tls/ca.crt}
{{- if .root.Values.nats.tls.client }}
- {name: PENSTOCK_NATS_TLS_CERT, value: /etc/penstock-tls/tls.crt}
- {name: PENSTOCK_NATS_TLS_KEY, value: /etc/penstock-tls/tls.key}
{{- end }}
{{- end }}
- {name: PENSTOCK_REPLICAS, value: {{ .root.Values.streams.replicas | quote }}}
- {name: PENSTOCK_KEEP, value: {{ include "penstock.keep" .root.Values.streams | quote }}}
- {name: PENSTOCK_SHARDS, value: {{ .root.Values.streams.shards | quote }}}
{{- end }}

{{- define "penstock.natsMounts" -}}
{{- if .Values.nats.existingSecret }}
- {name: nats, mountPath: /etc/penstock-nats, readOnly: true}
{{- end }}
{{- if .Values.nats.tls.existingSecret }}
- {name: nats-tls, mountPath: /etc/penstock-tls, readOnly: true}
{{- end }}
{{- end }}

{{/* The volumes of a NATS user: its own password alone. Takes (dict "root" $ "user" "edge"). */}}
{{- define "penstock.natsVolumes" -}}
{{- $nats := .root.Values.nats }}
{{- if $nats.existingSecret }}
- name: nats
  secret:
    secretName: {{ $nats.existingSecret }}
    defaultMode: 0440
    {{- if ne .user "all-in-one" }}
    items: [{key: {{ .user }}, path: {{ .user }}}]
    {{- end }}
{{- end }}
{{- if $nats.tls.existingSecret }}
- name: nats-tls
  secret:
    secretName: {{ $nats.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* The name of the Service that answers the paths of a service. */}}
{{- define "penstock.backend" -}}
{{- $full := include "penstock.fullname" .root -}}
{{- if eq .root.Values.mode "allInOne" }}{{ $full }}-all-in-one{{ else }}{{ $full }}-{{ .name }}{{ end -}}
{{- end }}

{{/* Which service answers which paths, `=` before exactly this path; all others go to the edge. */}}
{{- define "penstock.paths" -}}
/v1/approvals: approvals
/v1/policy: approvals
/v1/budgets: approvals
/v1/redactions: approvals
/d: approvals
/v1/automations: automations
/v1/hooks: automations
/v1/workflows: workflows
"=/": console
/console: console
/docs: console
/openapi.json: console
/favicon.ico: console
/assets: console
/: edge
{{- end }}

{{/* Whether something else than the chart sets the number of replicas. */}}
{{- define "penstock.scaled" -}}
{{- if or (dig "autoscaling" "enabled" false .) (dig "keda" "enabled" false .) }}yes{{ end -}}
{{- end }}

{{/* The host names that are answered when callers are not asked who they are. */}}
{{- define "penstock.hosts" -}}
{{- $hosts := list -}}
{{- range $name := list "edge" "approvals" "automations" "workflows" "console" -}}
{{- $backend := include "penstock.backend" (dict "root" $ "name" $name) -}}
{{- $hosts = concat $hosts (list $backend (printf "%s.%s" $backend $.Release.Namespace) (printf "%s.%s.svc" $backend $.Release.Namespace)) -}}
{{- end -}}
{{- with .Values.ingress.host }}{{ $hosts = append $hosts . }}{{ end -}}
{{- $hosts = concat $hosts .Values.httpRoute.hostnames -}}
{{- join "," (uniq $hosts) -}}
{{- end }}

{{/* The address at which people reach Penstock; empty if the chart does not know it. */}}
{{- define "penstock.publicUrl" -}}
{{- if .Values.ingress.enabled -}}
{{ ternary "https" "http" (ne .Values.ingress.tlsSecret "") }}://{{ .Values.ingress.host }}
{{- else if and .Values.httpRoute.enabled .Values.httpRoute.hostnames -}}
https://{{ first .Values.httpRoute.hostnames }}
{{- end -}}
{{- end }}

{{/* The durable consumers whose lag says how much waits for a service, in every shard of EVENTS. */}}
{{- define "penstock.consumers" -}}
automations:
  - {stream: DELIVERIES, consumer: automations}
  {{- range $shard := until (int .Values.streams.shards) }}
  - {stream: EVENTS{{ if $shard }}_{{ $shard }}{{ end }}, consumer: automations}
  {{- end }}
workflows:
  - {stream: COMMANDS, consumer: workflows-start}
  {{- range $shard := until (int .Values.streams.shards) }}
  - {stream: EVENTS{{ if $shard }}_{{ $shard }}{{ end }}, consumer: workflows}
  {{- end }}
{{- end }}

{{/* The MiB of a quantity in Mi or Gi; 0 for no quantity and for other units. */}}
{{- define "penstock.mebibytes" -}}
{{- $quantity := toString . -}}
{{- if hasSuffix "Gi" $quantity }}{{ mulf (trimSuffix "Gi" $quantity | float64) 1024 | int }}
{{- else if hasSuffix "Mi" $quantity }}{{ trimSuffix "Mi" $quantity | float64 | int }}
{{- else }}0{{ end -}}
{{- end }}

{{/*
The limits of bytes that fit the memory of a service, as YAML. A frame takes up to six times its size,
and several frames may come at once. The frames of agent servers have the same limit in connector and
normalizer, which fits the least memory of the services that carry them.
*/}}
{{- define "penstock.sizes" -}}
{{- $root := .root -}}
{{- $whole := eq .name "all-in-one" -}}
{{- $least := 0 -}}
{{- $own := 0 -}}
{{- range $name := ternary (list "all-in-one") (list "connector" "normalizer" "edge") $whole -}}
{{- $s := include "penstock.service" (dict "root" $root "name" $name) | fromYaml -}}
{{- $memory := include "penstock.mebibytes" (dig "resources" "limits" "memory" "" $s) | int -}}
{{- if and $memory (eq $name $.name) }}{{ $own = max 32 (sub $memory 160) | int }}{{ end -}}
{{- if and $memory (or (not $least) (lt $memory $least)) }}{{ $least = $memory }}{{ end -}}
{{- end -}}
{{- if and $least $own -}}
{{- $share := ternary 2 1 $whole -}}
{{- $frame := div (max 32 (sub $least 160)) (mul 24 $share) | max 1 | min 64 -}}
{{- $mib := 1048576 -}}
{{- if or $whole (has .name (list "connector" "normalizer")) }}
PENSTOCK_MAX_FRAME_BYTES: {{ mul $frame $mib | quote }}
{{- end }}
{{- if or $whole (eq .name "connector") }}
PENSTOCK_MAX_TOTAL_FRAME_BYTES: {{ mul (div $own (mul 2 $share)) $mib | quote }}
{{- end }}
{{- if or $whole (eq .name "normalizer") }}
PENSTOCK_MAX_HELD_BYTES: {{ mul (min 128 (div $own (mul 6 $share))) $mib | quote }}
{{- end }}
{{- if or $whole (eq .name "edge") }}
PENSTOCK_MAX_RING_BYTES: {{ mul (min 256 (div $own (mul 4 $share))) $mib | quote }}
{{- end }}
{{- end -}}
{{- end }}

{{/* The port of a URL. */}}
{{- define "penstock.portOf" -}}
{{- $url := urlParse . }}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- end }}
