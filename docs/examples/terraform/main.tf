# User data for GPU nodes: cloud-init writes node.toml and kubeadm's JoinConfiguration, gpuadm prepares the machine, and
# kubeadm joins it. The image has gpuadm, kubeadm, kubelet and containerd. docs/onprem.md shows how an instance gets it.

terraform {
  required_version = ">= 1.3"
}

variable "driver" {
  description = "The driver's branch, or an exact version."
  type        = string
  default     = "580"
}

variable "labels" {
  description = "Labels of the nodes."
  type        = map(string)
  default     = {}
}

variable "taints" {
  description = "Taints of the nodes."
  type        = list(string)
  default     = ["nvidia.com/gpu=present:NoSchedule"]
}

variable "api_server" {
  description = "HOST:PORT of the API server."
  type        = string
}

# All who can read the user data can read the token: make it live shortly.
variable "token" {
  description = "What kubeadm token create prints."
  type        = string
  sensitive   = true
}

variable "ca_cert_hash" {
  description = "sha256:… of the cluster's CA, which kubeadm token create --print-join-command prints."
  type        = string
}

locals {
  # A text of JSON is a text of TOML.
  labels = join(", ", [for name, value in var.labels : "${jsonencode(name)} = ${jsonencode(value)}"])

  node_toml = <<-EOT
    format = 1

    [driver]
    version = ${jsonencode(var.driver)}

    [toolkit]
    [runtime]

    [node]
    labels = { ${local.labels} }
    taints = ${jsonencode(var.taints)}
  EOT

  join_yaml = yamlencode({
    apiVersion = "kubeadm.k8s.io/v1beta4"
    kind       = "JoinConfiguration"
    discovery = {
      bootstrapToken = {
        apiServerEndpoint = var.api_server
        token             = var.token
        caCertHashes      = [var.ca_cert_hash]
      }
    }
  })

  cloud_config = {
    write_files = [
      { path = "/etc/gpuadm/node.toml", permissions = "0600", content = local.node_toml },
      { path = "/etc/gpuadm/join.yaml", permissions = "0600", content = local.join_yaml },
    ]
    runcmd = [join(" && ", [
      "gpuadm apply --install --unattended",
      "kubeadm join --config /etc/gpuadm/join.yaml",
      "rm /etc/gpuadm/join.yaml",
      "gpuadm apply --unattended",
    ])]
  }
}

output "user_data" {
  description = "For the instance's user data."
  value       = "#cloud-config\n${yamlencode(local.cloud_config)}"
  sensitive   = true
}
