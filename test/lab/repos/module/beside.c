// SPDX-License-Identifier: Apache-2.0

/* nvidia-uvm, nvidia-modeset and nvidia-drm: a kernel module with a version. It takes gpus=1, as nvidia does. */

#include <linux/errno.h>
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "lab.h"

static bool gpus;
module_param(gpus, bool, 0444);

static int __init lab_init(void)
{
	return gpus ? 0 : -ENODEV;
}

static void __exit lab_exit(void)
{
}

module_init(lab_init);
module_exit(lab_exit);
MODULE_LICENSE(LAB_LICENSE);
MODULE_DESCRIPTION("a fake of NVIDIA's for tests");
MODULE_VERSION(LAB_VERSION);
