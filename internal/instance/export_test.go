// SPDX-License-Identifier: Apache-2.0

package instance

// AWSDomain is awsDomain, for tests.
var AWSDomain = awsDomain
