// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// trusted refuses, before anything is installed, to build modules that the kernel would not load.
func trusted(k KernelSide) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if k.Build != "dkms" || !v.Live() && k.Image == nil {
			return "", nil
		}

		trust, err := k.trust(v)
		if err != nil || !trust.Demands() || trust.Trusts(trust.Build) {
			return "", err
		}
		if k.Image != nil {
			return unsignable(), nil
		}
		if all, err := k.allLoadable(v); err != nil || all {
			return "", err
		}
		return untrusted(trust), nil
	}
	const why = "gpuadm finds a module that the kernel refuses now, not after the reboot"
	return things.Check("modules will be trusted", look, why)
}

// untrusted says why the kernel would not load what DKMS builds, and what to do.
func untrusted(trust facts.Trust) string {
	demand := "under Secure Boot the kernel loads modules signed by enrolled keys only"
	if trust.SecureBoot != "on" {
		demand = "the kernel loads modules signed by keys it trusts only"
	}

	missing := "and this machine has no such key"
	switch {
	case trust.Waiting:
		missing = fmt.Sprintf("and the key that DKMS signs with (%s, serial %s) waits to be confirmed at the next boot", trust.Build.Name, trust.Build.Serial)
	case trust.Build != nil:
		missing = fmt.Sprintf("and the key that DKMS signs with (%s, serial %s) is not enrolled", trust.Build.Name, trust.Build.Serial)
	}

	return "cannot use modules built here: " + demand + ", " + missing + enrolment(trust)
}

// unsignable is the problem of an image whose modules no machine with Secure Boot would load.
func unsignable() string {
	return "cannot bake modules for Secure Boot: DKMS builds them, and bake has no key to sign them with" +
		"\nunder Secure Boot the kernel loads modules signed by enrolled keys only" +
		things.OrTry(trouble.Command("bake --module-key FILE --module-cert FILE")+", and enroll the certificate when the image is registered: docs/bake.md") +
		things.OrTry(`write build = "precompiled" in [driver], where the source has modules for these kernels that are signed`) +
		things.OrTry("--secure-boot=false, if no machine of this image boots with Secure Boot")
}

// enrolment lists the steps that make the kernel trust the key that DKMS signs with. The next read
// of the keyrings shows whether the operator took them.
//
// Sources: https://github.com/dkms-project/dkms README.md ("Secure Boot") and prepare_mok in
// dkms.in; mokutil(1). Images:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-ami-with-uefi-secure-boot.html,
// https://docs.cloud.google.com/sdk/gcloud/reference/compute/images/create and
// https://learn.microsoft.com/en-us/azure/virtual-machines/trusted-launch-secure-boot-custom-uefi.
func enrolment(t facts.Trust) string {
	confirm := "reboot, and at the console choose Enroll MOK, Continue, Yes, type the password, then Reboot; " +
		trouble.Command("apply") + " then checks that the key is enrolled"
	if t.Waiting {
		return things.OrTry(confirm)
	}

	signed := `write build = "precompiled" in [driver], where the source has modules for these kernels that are signed by a key they trust, as source = "distro" has on RHEL 10 and AlmaLinux`
	makeKey := `install dkms, mokutil and openssl, and make the key: dkms generate_mok, or before DKMS 3.1 openssl req -new -x509 -nodes -days 36500 -subj "/CN=DKMS module signing key" -newkey rsa:2048 -keyout /var/lib/dkms/mok.key -outform DER -out ` + t.BuildCert
	if strings.HasPrefix(t.BuildCert, ubuntuKeys) {
		signed = `write source = "distro" in [driver]: Ubuntu's own modules are signed by a key that its kernels trust`
		makeKey = "apt-get install dkms mokutil shim-signed, and make the key: update-secureboot-policy --new-key"
	}

	var steps []string
	if t.Build == nil {
		steps = append(steps, makeKey)
	}
	steps = append(steps,
		"mokutil --import "+t.BuildCert+", which asks for a password that is typed again at the console",
		confirm)

	try := things.OrTry(signed)
	for i, step := range steps {
		try += things.OrTry(fmt.Sprintf("or enroll the key of DKMS, step %d of %d: %s", i+1, len(steps), step))
	}
	try += things.OrTry("or, in a cloud without a console, start the machine from an image that has the certificate: UEFI data of an AMI on AWS, --signature-database-file on Google, additional UEFI signatures of a gallery image on Azure")
	if t.SecureBoot == "on" {
		try += things.OrTry("or switch Secure Boot off in the firmware")
	}
	return try
}

// ubuntuKeys is where Ubuntu's packages keep the key that DKMS signs with.
const ubuntuKeys = "/var/lib/shim-signed/"
