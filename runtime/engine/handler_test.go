// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]string{
		"1.7.24": "1 7 true", "v2.1.5": "2 1 true", "2.1.5~ds1": "2 1 true", "2.3-rc.1": "2 3 true", "1.7.24-0ubuntu1": "1 7 true",
		"": "0 0 false", "two": "0 0 false", "2": "0 0 false", "x.1": "0 0 false",
	} {
		major, minor, ok := ParseVersion(in)
		if got := fmt.Sprint(major, minor, ok); ok && got != want || !ok && !strings.HasSuffix(want, "false") {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
