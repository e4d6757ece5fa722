# SPDX-License-Identifier: Apache-2.0

source "azure-arm" "node" {
  use_azure_cli_auth                = true
  subscription_id                   = var.azure_subscription
  location                          = var.azure_location
  vm_size                           = "Standard_D4s_v5"
  os_type                           = "Linux"
  image_publisher                   = "Canonical"
  image_offer                       = "ubuntu-24_04-lts"
  image_sku                         = "server"
  os_disk_size_gb                   = 30
  managed_image_name                = local.name
  managed_image_resource_group_name = var.azure_resource_group
}
