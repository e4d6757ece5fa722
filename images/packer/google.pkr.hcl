# SPDX-License-Identifier: Apache-2.0

source "googlecompute" "node" {
  project_id          = var.google_project
  zone                = var.google_zone
  machine_type        = "e2-standard-4"
  source_image_family = "ubuntu-2404-lts-amd64"
  ssh_username        = "packer"
  disk_size           = 30
  image_name          = local.name
  image_family        = "gpuadm"
}
