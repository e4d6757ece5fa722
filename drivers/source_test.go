// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// TestAdviceCanBeFollowed: what a refusal advises is not refused itself.
func TestAdviceCanBeFollowed(t *testing.T) {
	debian := func(version string) Machine { return machine("debian", version, "arm64", "2342") }
	for _, x := range []struct {
		what   string
		m      Machine
		d      spec.Driver
		advice string // in the words of the refusal
		then   spec.Driver
	}{
		{"NVIDIA's for Debian 12 on arm64", debian("12"), with(driver("580"), "source", "nvidia"), `source = "runfile" and version = "595.91.07"`, with(driver("595.91.07"), "source", "runfile")},
		{"NVIDIA's for Debian 13 on arm64", debian("13"), with(driver("580"), "source", "nvidia"), `source = "runfile" and version = "595.91.07"`, with(driver("595.91.07"), "source", "runfile")},
		{"580 on Debian 13, arm64, by runfile", debian("13"), driver("580"), `source = "runfile"`, with(driver("580.95.05"), "source", "runfile")},
		{"580 on Debian 13, amd64", machine("debian", "13", "amd64", "2331"), with(driver("580"), "source", "distro"), `source = "nvidia"`, with(driver("580"), "source", "nvidia")},
		{"Amazon's on arm64", machine("amzn", "2023", "arm64", "2342"), with(driver("580"), "source", "distro"), `source = "nvidia"`, with(driver("580"), "source", "nvidia")},
		{"before Amazon's", machine("amzn", "2023", "amd64", "20b5"), with(driver("560"), "source", "distro"), `version = "595"`, with(driver("595"), "source", "distro")},
		{"before NVIDIA's", machine("debian", "13", "amd64", "20b5"), with(driver("550"), "source", "nvidia"), `version = "595"`, with(driver("595"), "source", "nvidia")},
		{"no archive of its own", machine("rocky", "9.6", "amd64", "2331"), with(driver("580"), "source", "distro"), `source = "auto"`, driver("580")},
		{"NVIDIA has none", machine("ubuntu", "25.10", "amd64", "2331"), driver("580"), `source = "runfile"`, with(driver("580.95.05"), "source", "runfile")},
	} {
		_, err := Choose(Load(), x.m, x.d)
		refused := (*trouble.Error)(nil)
		if !errors.As(err, &refused) {
			t.Errorf("%s: not refused: %v", x.what, err)
			continue
		}
		message := strings.Join(refused.Try, "\n")
		if !strings.Contains(message, x.advice) {
			t.Errorf("%s: %q\nadvises\n%s\nand not %s", x.what, refused.What, message, x.advice)
		}
		if strings.Contains(message, `source = "nvidia"`) && x.m.Arch == "arm64" && x.m.ID == "debian" {
			t.Errorf("%s: advises NVIDIA's repository, which has none for arm64: %s", x.what, message)
		}
		if _, err := Choose(Load(), x.m, x.then); err != nil {
			t.Errorf("%s: %s is refused too: %v", x.what, x.advice, err)
		}
	}
}
